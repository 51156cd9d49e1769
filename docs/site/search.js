// Questions are searched by the words that say what they are about: the search of mkdocs-material takes every word as the
// beginning of one, so the "on" of "FLUX on one card" would be looked for in once, only and online.
const EMPTY = new Set(
  ("a an and are as at be by can do does for from have how i if in is it its me my not of on or own should that the this " +
    "to we what when where which who why will with would you your").split(" "),
);
const subject = (query) => {
  const words = query.split(/\s+/).filter((word) => !EMPTY.has(word.toLowerCase().replace(/\W+$/, "")));
  return words.join(" ") || query;
};
for (const kind of [window.Worker, window.IFrameWorker]) {
  if (!kind || kind.prototype.asksForSubjects) continue; // from a file on disk both are one
  const post = kind.prototype.postMessage;
  kind.prototype.postMessage = function (message, ...more) {
    const asks = message && message.type === 2 && typeof message.data === "string"; // as the theme asks its worker
    return post.call(this, asks ? { ...message, data: subject(message.data) } : message, ...more);
  };
  kind.prototype.asksForSubjects = true;
}

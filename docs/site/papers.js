// The page of papers: a field that leaves the records which contain all of its words, and a choice of status.
const records = [...document.querySelectorAll("details.paper")];
if (records.length) {
  const words = Object.assign(document.createElement("input"), {type: "search", placeholder: "words of a record"});
  const status = document.createElement("select");
  status.append(...["any status", "works", "core", "part", "not yet"].map((one) => new Option(one)));
  const count = document.createElement("span");
  const box = Object.assign(document.createElement("p"), {className: "paper-filter"});
  words.setAttribute("aria-label", "words of a record");
  status.setAttribute("aria-label", "status");
  box.append(words, " ", status, " ", count);
  document.querySelector("article h2").before(box);
  const choose = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const record of records) {
      const stands = record.querySelector("small").textContent;
      const text = record.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word));
      record.hidden = !fits || (status.selectedIndex > 0 && !stands.startsWith(status.value));
    }
    count.textContent = `${records.filter((record) => !record.hidden).length} of ${records.length}`;
  };
  words.addEventListener("input", choose);
  status.addEventListener("change", choose);
  choose();
}

const pieces = (svg) => [...svg.querySelectorAll('[data-samples]')];
const samples = (piece) => piece.dataset.samples.split(' ');
const focus = (node) => {
  const nodes = node.closest('svg').querySelectorAll('.node');
  nodes.forEach((one) => one.setAttribute('tabindex', one === node ? '0' : '-1'));
  node.focus();
};
const choose = (node) => {
  const svg = node.closest('svg'), own = new Set(samples(node)), step = Number(node.dataset.step);
  const clear = node.getAttribute('aria-pressed') === 'true';
  pieces(svg).forEach((piece) => {
    const others = samples(piece), at = Number(piece.dataset.step);
    const below = at >= step && others.every((one) => own.has(one));
    const above = at <= step && [...own].every((one) => others.includes(one));
    piece.classList.toggle('dim', !clear && !below && !above);
    if (piece.matches('.node')) piece.setAttribute('aria-pressed', String(!clear && piece === node));
  });
  focus(node);
  const about = element.querySelector('.about');
  if (about) about.textContent = clear ? '' : node.dataset.about;
};
const neighbour = (node, key) => {
  const nodes = [...node.closest('svg').querySelectorAll('.node')];
  const find = (test) => nodes.find(test);
  if (key === 'ArrowLeft') return find((one) => one.dataset.id === node.dataset.parent);
  if (key === 'ArrowRight') return find((one) => one.dataset.parent === node.dataset.id);
  const level = nodes.filter((one) => one.dataset.step === node.dataset.step);
  const by = { ArrowUp: -1, ArrowDown: 1 }[key];
  return by ? level[level.indexOf(node) + by] : undefined;
};
element.addEventListener('click', (event) => {
  const node = event.target.closest('.node');
  if (node) choose(node);
});
element.addEventListener('keydown', (event) => {
  const node = event.target.closest('.node');
  if (!node) return;
  const next = neighbour(node, event.key);
  if (event.key === 'Enter' || event.key === ' ') choose(node);
  else if (next) focus(next);
  else if (!event.key.startsWith('Arrow')) return;
  event.preventDefault();
});

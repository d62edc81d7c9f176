"use strict";
// Opens and closes blocks of the graph, shows numbers, switches between light and dark. The page reads without it.
addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const isDark = () => getComputedStyle(root).colorScheme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
  };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  // ---------------------------------------------------------------- numbers on hover and focus
  const tip = document.getElementById("tip");
  let shown = null;
  const named = (target) => target.closest && target.closest("svg [aria-label][tabindex]");
  const show = (element) => {
    if (element === shown) return;
    shown = element;
    tip.hidden = !element;
    if (!element) return;
    const [title, ...lines] = element.getAttribute("aria-label").split("\n");
    const bold = document.createElement("b");
    bold.textContent = title;
    tip.replaceChildren(bold, ...lines.map((line) => {
      const row = document.createElement("span");
      row.textContent = line;
      return row;
    }));
    move(element);
  };
  const move = (element) => {
    const mark = element.querySelector(".before, .box") || element;
    const box = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const right = box.right + 12 + own.width <= innerWidth;
    const left = right ? box.right + 12 : box.left - 12 - own.width;
    const beside = left >= 8;
    const top = beside ? box.top : box.top + Math.min(box.height, 48) + 10;
    tip.style.left = `${beside ? left : Math.max(8, Math.min(box.left, innerWidth - own.width - 12))}px`;
    tip.style.top = `${Math.max(8, Math.min(top, innerHeight - own.height - 8))}px`;
  };
  // A page that scrolls to what has the focus moves under a pointer that rests: that must not hide its numbers.
  let focused = null;
  const hide = () => show(focused = null);
  document.addEventListener("pointerover", (event) => show(named(event.target) || focused));
  document.addEventListener("focusin", (event) => {
    show(named(event.target));
    focused = event.target.matches(":focus-visible") ? shown : null;
  });
  document.addEventListener("focusout", hide);
  const follow = () => (shown && shown === document.activeElement ? move(shown) : show(null));
  document.addEventListener("scroll", follow, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // ---------------------------------------------------------------- the graph
  const told = document.getElementById("graph-data");
  if (!told) return;
  const plan = JSON.parse(told.textContent);
  const svg = document.getElementById("graph");
  const element = new Map(), body = new Map(), inner = new Map(), above = new Map();
  for (const each of svg.querySelectorAll("[data-key]")) element.set(each.dataset.key, each);
  for (const each of svg.querySelectorAll("[data-body]")) body.set(each.dataset.body, each);
  for (const [key, block] of Object.entries(plan.blocks)) {
    for (const slot of block.slots) if (slot !== null) above.set(slot, key);
  }
  const isOpen = (key) => key in plan.blocks && !element.get(key).classList.contains("closed");

  const size = (slot) => {
    if (slot === null) return [plan.passage, 0];
    if (plan.ports.includes(slot)) return [0, 0];
    if (!(slot in plan.blocks)) return [plan.width, plan.heights[slot]];
    return isOpen(slot) ? inner.get(slot).size : [plan.width, plan.closed];
  };
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // The places nearest to the wishes at which the slots of a rank do not overlap.
  const fitted = (wishes, rank, widths) => {
    const offsets = [0];
    for (let n = 1; n < rank.length; n++) {
      offsets.push(offsets[n - 1] + (widths[rank[n - 1]] + widths[rank[n]]) / 2 + plan.between);
    }
    const pools = [];
    wishes.forEach((wish, n) => {
      let place = wish - offsets[n], count = 1;
      while (pools.length && pools[pools.length - 1][0] >= place) {
        const [other, many] = pools.pop();
        place = (place * count + other * many) / (count + many);
        count += many;
      }
      pools.push([place, count]);
    });
    return pools.flatMap(([place, count]) => Array(count).fill(place)).map((place, n) => place + offsets[n]);
  };

  const columns = (block, widths) => {
    const up = block.slots.map(() => []), down = block.slots.map(() => []);
    for (const [a, b] of block.links) { down[a].push(b); up[b].push(a); }
    const x = [];
    const put = (rank, places) => rank.forEach((slot, n) => { x[slot] = places[n]; });
    for (const rank of block.ranks) put(rank, fitted(rank.map(() => 0), rank, widths));
    for (let sweep = 0; sweep < 2 * plan.sweeps; sweep++) {
      const near = sweep % 2 ? down : up;
      for (const rank of sweep % 2 ? [...block.ranks].reverse() : block.ranks) {
        const wishes = rank.map((slot) => near[slot].length ? mean(near[slot].map((n) => x[n])) : x[slot]);
        put(rank, fitted(wishes, rank, widths));
      }
    }
    return x;
  };

  // Puts everything in a block where it belongs, and remembers how large the block is.
  const place = (key) => {
    const block = plan.blocks[key], sizes = block.slots.map(size);
    const x = columns(block, sizes.map(([width]) => width)), y = [], heights = [];
    const left = Math.min(...x.map((at, n) => at - sizes[n][0] / 2));
    const right = Math.max(...x.map((at, n) => at + sizes[n][0] / 2));
    let below = 0;
    for (const rank of block.ranks) {
      const height = Math.max(...rank.map((n) => sizes[n][1]));
      for (const n of rank) {
        y[n] = below + height / 2;
        heights[n] = block.slots[n] === null ? height : sizes[n][1];
      }
      below += height + plan.gap;
    }
    const wide = Math.max(right - left, plan.width), shift = (wide - (right - left)) / 2 - left;
    block.slots.forEach((slot, n) => {
      if (slot === null || plan.ports.includes(slot)) return;
      const at = element.get(slot);
      at.setAttribute("transform", `translate(${x[n] - sizes[n][0] / 2 + shift} ${y[n] - sizes[n][1] / 2})`);
      if (slot in plan.blocks) frame(at, sizes[n]);
    });
    const port = (slot, end) => (slot !== null && isOpen(slot) ? inner.get(slot).ports[end] : 0);
    const paths = body.get(key).querySelector(":scope > .edges").children;
    block.links.forEach(([a, b], n) => {
      const from = x[a] + shift + port(block.slots[a], 1), to = x[b] + shift + port(block.slots[b], 0);
      const start = y[a] + heights[a] / 2, end = y[b] - heights[b] / 2, middle = (start + end) / 2;
      const on = block.slots[b] === null ? `V${end + heights[b]}` : "";
      paths[n].setAttribute("d", `M${from} ${start}C${from} ${middle} ${to} ${middle} ${to} ${end}${on}`);
    });
    const isRoot = key === plan.root;
    const ports = plan.ports.map((name) => {
      const n = block.slots.indexOf(name);
      return n < 0 ? 0 : x[n] + shift - wide / 2;
    });
    const high = Math.max(below - plan.gap, 0);
    inner.set(key, { size: [wide + (isRoot ? 0 : 2 * plan.padding), high + (isRoot ? 0 : plan.header)], ports });
  };

  const frame = (group, [width, height]) => {
    const box = group.querySelector(":scope > .head > .box");
    box.setAttribute("width", width);
    box.setAttribute("height", height);
    group.querySelector(":scope > .head > .count").setAttribute("x", width - 10);
  };
  const fit = () => {
    const [width, height] = inner.get(plan.root).size.map((length) => length + 2 * plan.margin);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  };
  const keys = Object.keys(plan.blocks);  // outer ones first
  const placeAll = () => { for (const key of [...keys].reverse()) place(key); fit(); };
  const set = (key, open) => {
    element.get(key).classList.toggle("closed", !open);
    element.get(key).querySelector(":scope > .head").setAttribute("aria-expanded", String(open));
  };
  const setAll = (open) => {
    for (const key of keys) if (key !== plan.root) set(key, open(key));
    placeAll();
  };
  element.set(plan.root, svg);
  for (const key of [...keys].reverse()) place(key);  // remembers sizes; nothing moves

  const toggle = (key) => {
    const scroll = document.getElementById("graph-box");
    const head = element.get(key).querySelector(":scope > .head");
    const was = head.getBoundingClientRect();
    set(key, !isOpen(key));
    for (let at = above.get(key); at !== undefined; at = above.get(at)) place(at);
    fit();
    const is = head.getBoundingClientRect();  // what was clicked stays under the pointer
    scroll.scrollTop += is.top - was.top;
    scroll.scrollLeft += is.left + is.width / 2 - was.left - was.width / 2;
    show(null);
  };
  svg.addEventListener("click", (event) => {
    const head = event.target.closest(".head");
    if (head) toggle(head.parentNode.dataset.key);
  });
  svg.addEventListener("keydown", (event) => {
    const head = event.target.closest(".head");
    if (head && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      toggle(head.parentNode.dataset.key);
    }
  });
  const button = (id, open) => {
    const control = document.getElementById(id);
    if (control) control.addEventListener("click", () => setAll(() => open));
  };
  button("open-all", true);
  button("close-all", false);

  // On paper everything is open, as nobody can click there.
  let before = null;
  const unfold = () => {
    if (before) return;
    before = new Set(keys.filter((key) => key !== plan.root && isOpen(key)));
    setAll(() => true);
    for (const part of document.querySelectorAll("details")) part.open = true;
  };
  addEventListener("beforeprint", unfold);
  addEventListener("afterprint", () => { const kept = before; before = null; if (kept) setAll((key) => kept.has(key)); });
});

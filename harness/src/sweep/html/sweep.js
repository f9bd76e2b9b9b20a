// The answers of all arms, drawn from the data in the page as they are asked for: so many items at a time.
(() => {
  "use strict";
  const AT_A_TIME = 20;
  const LONG = 500;
  const FOLDED = 4;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const [form, list, more, shown] = [byId("find"), byId("items"), byId("more-items"), byId("items-shown")];
  byId("without-scripts").hidden = true;
  form.hidden = false;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const piece = (model, token) => data.pieces[model]?.[token] ?? `⟨${token}⟩`;
  const spelled = new WeakMap();
  const text = (answer) => {
    if (!spelled.has(answer)) spelled.set(answer, answer.tokens.map((token) => piece(answer.model, token)).join(""));
    return spelled.get(answer);
  };

  // The text of an answer, with the tokens marked that the reference has not; one mark for each run of them.
  const marked = (answer, marks) => {
    const node = make("p", "text");
    const put = (from, to, tag, className) => {
      const part = answer.tokens.slice(from, to).map((token) => piece(answer.model, token)).join("");
      node.append(tag ? make(tag, className, part) : document.createTextNode(part));
    };
    let at = 0;
    for (const [start, count] of marks ?? []) {
      put(at, start);
      if (count === 0) {
        const gone = make("mark", "gone", "‸");
        gone.title = "the reference has more here";
        node.append(gone);
      } else put(start, start + count, "mark");
      at = start + count;
    }
    put(at);
    if (answer.tokens.length === 0) node.append(make("em", "", "no token"));
    return node;
  };

  // Arms by name; many are folded.
  const names = (arms) => {
    const who = make("ul", "who");
    for (const arm of arms) {
      const name = make("li", "", data.arms[arm].label);
      name.title = data.arms[arm].id;
      who.append(name);
    }
    if (arms.length <= FOLDED) return who;
    const folded = make("details", "who");
    folded.append(make("summary", "", `${arms.length === data.arms.length ? "all " : ""}${arms.length} arms`), who);
    return folded;
  };

  // An answer, the arms that gave it, and whether it is right.
  const given = (item, place, arms, reference) => {
    const answer = item.answers[place];
    const box = make("div", `given ${answer.judged}`);
    const words = [];
    if (answer.judged) words.push(answer.judged === "right" ? "✓ right" : "✕ wrong");
    if (answer.read !== undefined && answer.judged) words.push(`read as ${answer.read}`);
    words.push(`${answer.tokens.length} tokens${answer.ended ? "" : ", not ended"}`);
    box.append(make("p", "more", words.join(" · ")), marked(answer, item.marks?.[`${place}-${reference}`]));
    box.append(names(arms));
    return box;
  };

  const side = (item) => {
    const [kind, apart] = [byId("by-reference").value, byId("by-arms").value === "apart"];
    const groups = new Map();
    item.of.forEach((place, arm) => {
      if (place < 0) return;
      const other = data.arms[arm][kind];
      const reference = other === undefined ? place : item.of[other];
      const key = apart ? arm : `${place}-${reference}`;
      if (!groups.has(key)) groups.set(key, { place, reference, arms: [] });
      groups.get(key).arms.push(arm);
    });
    const box = make("div", "side");
    for (const { place, reference, arms } of groups.values()) box.append(given(item, place, arms, reference));
    for (const [arm, why] of Object.entries(item.lost ?? {})) {
      const lost = make("div", "given wrong");
      lost.append(make("p", "", `no result: ${why}`));
      lost.append(names([arm]));
      box.append(lost);
    }
    return box;
  };

  const losses = (item) => {
    const rows = item.loss.map((loss, arm) => [loss, arm]).filter(([loss]) => loss !== null);
    const least = Math.min(...rows.map(([loss]) => loss));
    const told = make("ul", "losses");
    for (const [loss, arm] of rows) {
      const beyond = loss === least ? "" : ` (+${(loss - least).toExponential(1)} nats a token)`;
      told.append(make("li", "", `${data.arms[arm].label}: perplexity ${Math.exp(loss).toPrecision(6)}${beyond}`));
    }
    return told;
  };

  // A long prompt is folded.
  const prompt = (words) => {
    if (words.length <= LONG) return [make("p", "prompt", words)];
    const rest = make("details");
    rest.append(make("summary", "", `all ${words.length} characters`), make("p", "prompt", words));
    return [make("p", "prompt", `${words.slice(0, LONG)}…`), rest];
  };

  const draw = (item) => {
    const box = make("article", "item");
    box.id = `item-${item.id}`;
    const head = make("h3");
    const link = make("a", "", item.id);
    link.href = `#item-${encodeURIComponent(item.id)}`;
    head.append(link);
    box.append(head);
    if (item.tags.length > 0) box.append(make("p", "tags", item.tags.join(" · ")));
    box.append(...prompt(item.prompt));
    if (item.expected !== undefined) {
      const expected = make("p", "more", "expected: ");
      expected.append(make("code", "", item.expected));
      box.append(expected);
    }
    if (item.loss) box.append(losses(item));
    box.append(side(item));
    return box;
  };

  let found = [];
  let drawn = 0;
  const next = () => {
    const part = document.createDocumentFragment();
    for (const item of found.slice(drawn, drawn + AT_A_TIME)) part.append(draw(item));
    drawn = Math.min(found.length, drawn + AT_A_TIME);
    list.append(part);
    more.hidden = drawn === found.length;
    shown.textContent = `${found.length} of ${data.items.length} items found, ${drawn} drawn`;
  };
  const find = () => {
    const [kind, tag, words] = [byId("by-kind").value, byId("by-tag").value, byId("by-text").value.toLowerCase()];
    const has = (value) => value.toLowerCase().includes(words);
    const wanted = { differing: byId("by-reference").value === "parity" ? 0 : 1, wrong: 2, lost: 3 }[kind];
    found = data.items.filter((item) => (kind === "" || item.is[wanted]) && (tag === "" || item.tags.includes(tag)) &&
      (words === "" || has(item.id) || has(item.prompt) || item.answers.some((answer) => has(answer.text) || has(text(answer)))));
    drawn = 0;
    list.replaceChildren();
    next();
  };
  // A link to an item finds it.
  const follow = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    if (!id.startsWith("item-")) return;
    if (!byId(id)) {
      form.reset();
      byId("by-text").value = id.slice(5);
      find();
    }
    byId(id)?.scrollIntoView();
  };

  let waiting = 0;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 120); });
  form.addEventListener("reset", () => setTimeout(find));
  more.addEventListener("click", () => {
    const before = drawn;
    next();
    list.children[before]?.querySelector("a").focus();
  });
  addEventListener("hashchange", follow);
  find();
  follow();
})();

// See ci/browser-check, which finds the browser and the modules.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const WIDTHS = [1280, 360];
const SCHEMES = ["light", "dark"];

const arguments_ = process.argv.slice(2);
let shots = null;
if (arguments_[0] === "--shots") {
  shots = arguments_[1];
  arguments_.splice(0, 2);
  fs.mkdirSync(shots, { recursive: true });
}
if (arguments_.length === 0) {
  console.error("usage: ci/browser-check [--shots FOLDER] REPORT-FOLDER...");
  process.exit(1);
}

let findings = 0;
const check = (good, where, what) => {
  if (good) return;
  findings += 1;
  console.error(`FAIL ${where}: ${what}`);
};

/// What is wider than the window and not in a box of its own that scrolls.
const overflowing = () => {
  const width = document.documentElement.clientWidth;
  const boxed = (node) => {
    for (let at = node.parentElement; at; at = at.parentElement) {
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const wide = [...document.body.querySelectorAll("*")].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.right > width + 1 && !boxed(node) && !node.closest(".skip");
  });
  const names = wide.slice(0, 3).map((node) => `${node.tagName.toLowerCase()}.${node.className}`);
  return { page: document.documentElement.scrollWidth - width, names };
};

/// Follows `selector` and says what the link led to.
const follow = async (page, selector) => {
  const link = await page.$(selector);
  if (!link) return null;
  await link.evaluate((node) => node.scrollIntoView({ block: "center" }));
  await link.click();
  await new Promise((done) => setTimeout(done, 150));
  return page.evaluate(() => {
    const target = document.getElementById(location.hash.slice(1));
    const cell = target?.closest("details.cell");
    const box = target?.getBoundingClientRect();
    return {
      hash: location.hash,
      open: Boolean(cell?.open),
      seen: Boolean(box && box.top < innerHeight && box.bottom > 0),
      command: cell?.querySelector(".command code")?.textContent ?? "",
    };
  });
};

const leads = (where, what, led) => {
  check(led.open && led.seen, where, `${what} leads to ${led.hash}, which is ${led.open ? "not in sight" : "folded"}`);
  check(/^\S*ggml-parity run /.test(led.command), where, `${what}: no command to run the cell again: "${led.command}"`);
};

/// Tabs through the first controls: each must show its focus.
const focus = async (page, where) => {
  await page.evaluate(() => {
    history.replaceState(null, "", location.pathname);
    document.activeElement?.blur();
    scrollTo(0, 0);
  });
  const seen = new Set();
  for (let i = 0; i < 12; i += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const node = document.activeElement;
      const style = getComputedStyle(node);
      const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
      return { name: `${node.tagName} ${node.id || node.className || node.textContent.slice(0, 20)}`, body: node === document.body, ring };
    });
    if (at.body) break;
    seen.add(at.name);
    check(at.ring, where, `the focus of ${at.name} cannot be seen`);
  }
  check(seen.size >= 3, where, `the keyboard reaches only ${[...seen].join(", ")}`);
};

const filters = async (page, where) => {
  const before = await page.$$eval("details.cell", (cells) => cells.length);
  if (before === 0) return;
  check(await page.$eval("#controls", (form) => !form.hidden), where, "the filters are not shown");
  await page.select("#by-status", "red");
  const count = () => page.$$eval("details.cell", (cells) => cells.filter((cell) => !cell.hidden).length);
  const red = await page.$$eval('details.cell[data-red="true"]', (cells) => cells.length);
  check((await count()) === red, where, `the filter for red shows ${await count()} of ${red} cells`);
  const device = await page.$eval("#by-device option:last-child", (option) => option.value);
  await page.select("#by-status", "");
  await page.select("#by-device", device);
  const its = await page.$$eval("details.cell", (cells, name) => cells.filter((cell) => cell.dataset.device === name).length, device);
  check((await count()) === its, where, `the filter for ${device} shows ${await count()} of ${its} cells`);
  await page.select("#by-order", "worst");
  const ranks = await page.$$eval("details.cell", (cells) => cells.map((cell) => Number(cell.dataset.worst)));
  check(ranks.every((rank, i) => rank === i), where, "the order `worst first` is another");
  await page.click("#reset");
  await new Promise((done) => setTimeout(done, 100));
  check((await count()) === before, where, "reset leaves cells out");
};

/// Which of the pages this is: of a run, of a sweep over a corpus, or of one over lengths.
const kindOf = (page) => page.evaluate(() => {
  if (document.getElementById("items")) return "sweep";
  return document.getElementById("ranges") ? "depth" : "run";
});

/// The headings that each page has, with scripts or without.
const HEADINGS = {
  run: ["What to look at first", "Environment"],
  sweep: ["What differs", "Arm by arm", "Figures of all arms", "Answers side by side", "Environment"],
  depth: ["What is known", "Figures over length", "Every length", "Environment"],
};

const pause = () => new Promise((done) => setTimeout(done, 300));

/// The answers of a sweep: drawn a few at a time, found by filters, marked where they differ.
const answers = async (page, where, name) => {
  const all = await page.$eval("#data", (node) => JSON.parse(node.textContent).items.map(({ id, is, tags }) => ({ id, is, tags })));
  const state = () => page.evaluate(() => ({
    found: Number(document.getElementById("items-shown").textContent.split(" ")[0]),
    drawn: [...document.querySelectorAll("#items > .item")].map((item) => item.id.slice(5)),
    more: !document.getElementById("more-items").hidden,
  }));
  const first = await state();
  check(first.found === all.length, where, `${first.found} of ${all.length} items found`);
  check(first.drawn.length === Math.min(20, all.length), where, `${first.drawn.length} items drawn at once`);
  check(first.more === all.length > 20, where, "the button for more items is not where it is wanted");
  if (first.more) {
    await page.click("#more-items");
    const next = await state();
    check(next.drawn.length > first.drawn.length, where, "more items are not drawn");
    check(new Set(next.drawn).size === next.drawn.length, where, "an item is drawn twice");
  }
  const reference = await page.$eval("#by-reference", (select) => select.value);
  const differing = reference === "parity" ? 0 : 1;
  for (const [kind, place] of [["wrong", 2], ["lost", 3], ["differing", differing]]) {
    await page.select("#by-kind", kind);
    await pause();
    const wanted = all.filter((item) => item.is[place]).length;
    const { found } = await state();
    check(found === wanted, where, `the filter for ${kind} items finds ${found} of ${wanted}`);
  }
  if (all.some((item) => item.is[differing])) {
    const marks = await page.$$eval("#items .given mark", (nodes) => nodes.length);
    check(marks > 0, where, "no token of differing answers is marked");
    await shoot(page, `${name}-marked`, "#items > .item");
  }
  await page.select("#by-kind", "");
  const tag = await page.$eval("#by-tag option:last-child", (option) => option.value);
  await page.select("#by-tag", tag);
  await pause();
  const tagged = all.filter((item) => tag === "" || item.tags.includes(tag)).length;
  check((await state()).found === tagged, where, `the filter for ${tag} finds ${(await state()).found} of ${tagged}`);
  await page.click("#reset-answers");
  await pause();
  await page.type("#by-text", all[all.length - 1].id);
  await pause();
  const searched = await state();
  check(searched.drawn.includes(all[all.length - 1].id), where, "the search for an id does not find its item");
  await page.click("#reset-answers");
  await pause();
  check((await state()).found === all.length, where, "reset leaves items out");
  await page.select("#by-arms", "apart");
  await pause();
  const apart = await page.$$eval("#items > .item:first-child .given", (nodes) => nodes.length);
  await page.select("#by-arms", "together");
  await pause();
  const together = await page.$$eval("#items > .item:first-child .given", (nodes) => nodes.length);
  check(together <= apart, where, `${together} answers together, ${apart} apart`);
  await page.evaluate((id) => { location.hash = `#item-${encodeURIComponent(id)}`; }, all[all.length - 1].id);
  await pause();
  check((await state()).drawn.includes(all[all.length - 1].id), where, "a link to an item does not show it");
};

/// A sweep over lengths: every length has its command, and the curves are there.
const lengths = async (page, where) => {
  const commands = await page.$$eval("#lengths tbody tr", (rows) => rows.map((row) => row.querySelector("code")?.textContent ?? ""));
  check(commands.length > 0, where, "no length is listed");
  check(commands.every((command) => /^\S*ggml-parity run /.test(command)), where, "a length without the command that runs it again");
  check((await page.$$("#figures svg[role='img'] path.mark")).length > 0, where, "no figure is drawn over length");
};

const open = async (browser, file, width, scheme, script) => {
  const page = await browser.newPage();
  const where = `${file} ${width} ${scheme}${script ? "" : " without scripts"}`;
  page.on("console", (message) => check(!["error", "warn"].includes(message.type()), where, `console: ${message.text()}`));
  page.on("pageerror", (error) => check(false, where, `error: ${error.message}`));
  page.on("request", (request) => {
    const url = request.url();
    const own = url === pathToFileURL(file).href || url.startsWith(`${pathToFileURL(file).href}#`) || url.startsWith("data:");
    check(own, where, `request: ${url}`);
  });
  page.on("dialog", (dialog) => {
    check(false, where, `a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.setJavaScriptEnabled(script);
  await page.setViewport({ width, height: 900, deviceScaleFactor: 1, isMobile: width < 600, hasTouch: width < 600 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(pathToFileURL(file).href, { waitUntil: "load" });
  return { page, where };
};

const shoot = async (page, name, selector) => {
  if (!shots) return;
  const to = path.join(shots, `${name}.png`);
  if (!selector) return page.screenshot({ path: to });
  const node = await page.$(selector);
  if (node) await node.screenshot({ path: to });
};

const examine = async (browser, file, width, scheme) => {
  const { page, where } = await open(browser, file, width, scheme, true);
  const name = `${path.basename(path.dirname(path.resolve(file)))}-${width}-${scheme}`;
  await shoot(page, name);
  await shoot(page, `${name}-matrix`, "#matrix");

  const wide = await page.evaluate(overflowing);
  check(wide.page <= 0 && wide.names.length === 0, where, `${wide.page} pixels wider than the window: ${wide.names.join(", ")}`);

  // The policy of the page forbids scripts by others: axe runs beside it, in the world of the debugger.
  await page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const found = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
  for (const violation of found.violations) {
    const nodes = violation.nodes.slice(0, 3).map((node) => `${node.target.join(" ")} (${node.failureSummary?.split("\n")[1]?.trim()})`);
    check(false, where, `axe: ${violation.id}: ${violation.help}: ${nodes.join("; ")}`);
  }

  await focus(page, where);
  const kind = await kindOf(page);
  if (kind !== "run") {
    await (kind === "sweep" ? answers : lengths)(page, where, name);
    await shoot(page, `${name}-figures`, kind === "sweep" ? "#charts" : "#figures");
    for (const details of await page.$$("main details")) await details.evaluate((node) => { node.open = true; });
    const after = await page.evaluate(overflowing);
    check(after.page <= 0 && after.names.length === 0, where, `in use ${after.page} pixels wider: ${after.names.join(", ")}`);
    await page.close();
    return;
  }
  await filters(page, where);
  const red = await page.$$eval("a.field[data-red='true']", (links) => links.length);
  const listed = await page.$$eval("ol.first > li", (items) => items.length);
  check(red === 0 || listed > 0, where, "red cells, and no list of what to look at first");
  const links = [["the first of the list", "ol.first .cell-link"], ["where it begins", "ol.first .places a"],
    ["the first red field", "a.field[data-red='true']"], ["the first field", "a.field"]];
  for (const [what, selector] of links) {
    const led = await follow(page, selector);
    if (led) leads(where, what, led);
    if (led && what === "where it begins") await shoot(page, `${name}-place`);
  }
  if (red > 0) await shoot(page, `${name}-cell`, "details.cell[data-status='diverged'][open]");
  const after = await page.evaluate(overflowing);
  check(after.page <= 0 && after.names.length === 0, where, `with details ${after.page} pixels wider: ${after.names.join(", ")}`);
  await page.close();
};

/// Without scripts everything is there to be read.
const plain = async (browser, file) => {
  const { page, where } = await open(browser, file, 1280, "light", false);
  const text = await page.$eval("main", (main) => main.textContent);
  for (const wanted of HEADINGS[await kindOf(page)]) check(text.includes(wanted), where, `no "${wanted}"`);
  check((await page.$$("#controls:not([hidden]), #find:not([hidden])")).length === 0, where, "filters that do nothing are shown");
  await page.close();
};

(async () => {
  const puppeteer = await import(pathToFileURL(require.resolve("puppeteer-core")).href);
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    headless: true,
    // In a container root has no sandbox; the pages are our own files.
    args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
  });
  try {
    for (const folder of arguments_) {
      const file = path.join(folder, "index.html");
      for (const width of WIDTHS) for (const scheme of SCHEMES) await examine(browser, file, width, scheme);
      await plain(browser, file);
      console.log(`${file}: looked at`);
    }
  } finally {
    await browser.close();
  }
  if (findings > 0) {
    console.error(`${findings} findings`);
    process.exit(1);
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

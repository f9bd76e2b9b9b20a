// Varied strings from a seed: the same on every run.

/** Numbers in [0, 1), by the mulberry32 generator. */
function random(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x6D2B79F5) >>> 0;
        let t = state;
        t = Math.imul(t ^ (t >>> 15), t | 1);
        t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
}

// Ranges of code points, all assigned (or never to be) long before the tables in use today were made.
const SCRIPTS = {
    latin: [[0x41, 0x5A], [0x61, 0x7A], [0xC0, 0x17F], [0x1C4, 0x1CC]],
    greek: [[0x391, 0x3A1], [0x3B1, 0x3C9], [0x1F00, 0x1F07]],
    cyrillic: [[0x410, 0x44F], [0x400, 0x45F]],
    hebrew: [[0x5D0, 0x5EA], [0x5B0, 0x5BC]],
    arabic: [[0x627, 0x63A], [0x641, 0x652], [0x660, 0x669], [0x60C, 0x60C], [0x200F, 0x200F]],
    devanagari: [[0x905, 0x939], [0x93E, 0x94D], [0x966, 0x96F]],
    thai: [[0xE01, 0xE3A], [0xE40, 0xE4E], [0xE50, 0xE59]],
    hangul: [[0xAC00, 0xD7A3], [0x1100, 0x1112]],
    cjk: [[0x4E00, 0x9FA5], [0x3400, 0x3440], [0x20000, 0x20040], [0x3001, 0x3003]],
    kana: [[0x3041, 0x3096], [0x30A1, 0x30FA], [0xFF66, 0xFF9D]],
    modifiers: [[0x2B0, 0x2B8], [0x300, 0x36F], [0x1DC0, 0x1DCF], [0x20D0, 0x20DC]],
    numbers: [[0xB2, 0xB3], [0xBC, 0xBE], [0x2070, 0x2079], [0x2160, 0x2188], [0x2460, 0x2473], [0x3007, 0x3007],
        [0xFF10, 0xFF19], [0x1D7CE, 0x1D7FF]],
    punctuation: [[0x21, 0x2F], [0x3A, 0x40], [0x5B, 0x60], [0x7B, 0x7E], [0xA1, 0xBF], [0x2010, 0x2027],
        [0x2030, 0x205E], [0xFF01, 0xFF0F]],
    symbols: [[0x20A0, 0x20B5], [0x2190, 0x21FF], [0x2200, 0x22FF], [0x2500, 0x257F], [0x2600, 0x26FF], [0x1F300, 0x1F5FF]],
    odd: [[0x01, 0x1F], [0x7F, 0x9F], [0xAD, 0xAD], [0x200B, 0x200E], [0x2060, 0x2064], [0xE000, 0xE010], [0xFDD0, 0xFDD2],
        [0xFEFF, 0xFEFF], [0xFFFD, 0xFFFD], [0xFFFE, 0xFFFE], [0x10FFFD, 0x10FFFF], [0xE0061, 0xE0063], [0x17F, 0x17F],
        [0x212A, 0x212A], [0x130, 0x131]]
};
const SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u0085", "\u00A0", "\u1680", "\u2003",
    "\u2028", "\u202F", "\u205F", "\u3000"];
const WORDS = ("the of and to in is that it was for on are with as his they be at one have this from or had by hot word but "
    + "what some we can out other were all there when up use your how said an each she which do their time if will way about "
    + "information government international understanding Programming Language UNESCO iPhone naïve café Straße façade").split(" ");
const SUFFIXES = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'vE", "'M", "'LL", "'lL", "'D",
    "’s", "'", "''s", "'x", "'r", "'l", "'\u017F", "'e"];
const EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "❤️‍🔥", "🦀", "🦀🦀🦀", "🧑🏿‍🚀", "☕️", "😀😃", "👩‍💻"];
const CODE = ["fn main() {\n    println!(\"{}\", x);\n}", "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }",
    "def f(x, *, y=None):\n\treturn x if y is None else x**y", "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE a>=10;",
    "#include <stdio.h>\r\n", "x = {'k': [1, 2.5e-3], \"q\": null}", "// ----- TODO: 100% ------", "a->b::c<T&&>();",
    "https://example.org/a_b?c=1&d=%20#e", "C:\\Users\\x\\y.txt", "$HOME/${x[@]}", "\\frac{a}{b}^2", "|---|---|", "```py\n```"];
const SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start|", "|im_end|>", "<|im_start|><|im_end|>",
    "<|im_end|><|im_start|><|im_end|>", "<tool>", "<tool", "<unk>", "<s>", "</s>", "<s></s><s>", "<|eom_id|>", "<unused0>",
    "<0x0A>", "🦀🦀", "<|im_start|>user\nHi<|im_end|>\n", "[INST]", "▁", "▁▁a"];

/** `n` strings; the first ones are edge cases. */
export function strings(n, seed) {
    const next = random(seed);
    const int = (below) => Math.floor(next() * below);
    const pick = (list) => list[int(list.length)];
    const many = (most, make, glue = "") => Array.from({length: 1 + int(most)}, make).join(glue);
    const point = (ranges) => {
        const [first, last] = pick(ranges);
        return String.fromCodePoint(first + int(last - first + 1));
    };
    const names = Object.keys(SCRIPTS);
    const makers = [
        () => many(8, () => pick(WORDS), " "),
        () => many(4, () => pick(WORDS) + pick(SUFFIXES), pick([" ", "", "  "])),
        () => pick(WORDS).toUpperCase() + pick(SUFFIXES).toUpperCase(),
        () => { const script = SCRIPTS[pick(names)]; return many(10, () => point(script)); },
        () => many(10, () => point(SCRIPTS[pick(names)])),
        () => many(6, () => pick(SPACES)),
        () => pick(SPACES).repeat(1 + int(20)),
        () => many(4, () => many(1 + int(14), () => int(10)), pick([" ", ".", ",", "-", ""])),
        () => many(3, () => pick(EMOJI), pick(["", " "])),
        () => pick(CODE),
        () => pick(SPECIAL),
        () => pick(WORDS)[0] + many(3, () => point(SCRIPTS.modifiers)) + pick(WORDS)
    ];
    const long = [
        () => pick([" ", "\n", "\t", "\r\n", " \n", "\u3000"]).repeat(100 + int(300)),
        () => pick(["a", "ab", "0", "123", "é", "中", "!", "=-", "🦀", "\u0301", "<|im_end|>"]).repeat(100 + int(300)),
        () => many(200, () => pick(WORDS) + pick(SUFFIXES), " ")
    ];
    const list = ["", " ", "  ", "\n", "\r\n", "\0", "a", " a", "a ", "'", "'s", " 's", "1", "1234567890123", " \n ", "\u00A0x"];
    while (list.length < n) {
        const text = list.length % 40 === 0 ? pick(long)() : "";
        list.push(text + many(6, () => pick(makers)(), pick(["", "", " "])));
    }
    return list.slice(0, n);
}

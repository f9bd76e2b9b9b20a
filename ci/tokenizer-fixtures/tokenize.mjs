// Token ids of llama.cpp, through node-llama-cpp. README.md says how it is used.
//
// node tokenize.mjs FOLDER SMOLLM2.gguf FIXTURES
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import {getLlama} from "node-llama-cpp";
import {strings} from "./strings.mjs";

const [folder, smollm2, fixtures] = process.argv.slice(2);
if (fixtures == null)
    throw new Error("usage: node tokenize.mjs FOLDER SMOLLM2.gguf FIXTURES");

const vocabularies = ["default", "smollm", "qwen2", "llama-bpe", "gpt-2", "spm", "spm-no-prefix"]
    .map((name) => [name, path.join(folder, `${name}.gguf`)]);
vocabularies.push(["full", smollm2]);

const cases = strings(1000, 2026).map((text) => ({text}));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
for (const [name, modelPath] of vocabularies) {
    const model = await llama.loadModel({modelPath, vocabOnly: true, ignoreMemorySafetyChecks: true});
    for (const one of cases) {
        one[name] = model.tokenize(one.text, true);
        // Control tokens as plain text, where that makes a difference.
        const plain = model.tokenize(one.text, false);
        if (JSON.stringify(plain) !== JSON.stringify(one[name]))
            one[`${name}/plain`] = plain;
    }
    await model.dispose();
}

// gzip's header holds no time here, so that equal content is an equal file.
const pack = (name, bytes) => fs.writeFileSync(path.join(fixtures, `${name}.gz`), zlib.gzipSync(bytes, {level: 9}));
pack("cases.jsonl", cases.map((one) => JSON.stringify(one)).join("\n") + "\n");
for (const name of ["bpe.gguf", "spm.gguf"])
    pack(name, fs.readFileSync(path.join(folder, name)));
process.exit(0);

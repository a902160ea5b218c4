#!/usr/bin/env node
// Checks a Bulkhead receipt with the page's own verifier, without a browser.
//
// Usage: receipt.mjs VERIFIER-KEY-FILE RECEIPT-FILE
//        receipt.mjs --batch CASES-FILE
//
// A file of cases is a JSON list of objects with `key` (a line), `receipt` and, where they are at hand, `request` and
// `response` (base64); printed is one report a line. Exit status 0 when a single receipt is genuine, 1 when it is not.

import { createRequire } from "node:module";
import { readFileSync, statSync } from "node:fs";

const verifier = createRequire(import.meta.url)("../../audit/verify/page/verifier.js");

function read(path) {
  if (!statSync(path).isFile()) throw new Error(`${path} is not a regular file`);
  return new Uint8Array(readFileSync(path));
}

/** Numbers of 64 bits as text: not every one of them is a number of JavaScript. */
function line(report) {
  return JSON.stringify(report, (_, value) => (typeof value === "bigint" ? value.toString() : value));
}

async function batch(path) {
  const bytes = (text) => (text === undefined || text === null ? undefined : new Uint8Array(Buffer.from(text, "base64")));
  for (const { key, receipt, request, response } of JSON.parse(readFileSync(path, "utf8"))) {
    const evidence = { request: bytes(request), response: bytes(response) };
    try {
      verifier.parseKey(key);
    } catch (error) {
      console.log(line({ result: "key", reason: error.message }));
      continue;
    }
    console.log(line(await verifier.checkReceipt(bytes(receipt), key, evidence)));
  }
  return 0;
}

async function one(keyPath, receiptPath) {
  let report;
  try {
    const key = Buffer.from(read(keyPath)).toString("utf8");
    report = await verifier.checkReceipt(read(receiptPath), key);
  } catch (error) {
    report = { result: "refused", reason: error.message };
  }
  if (report.result !== "genuine") {
    console.log(`REFUSED: ${report.reason}`);
    return 1;
  }
  console.error("under the one key that was given: no rotation of it is followed");
  const { origin, treeSize, index, entrySha256, model, fingerprint } = report;
  const facts = `origin=${origin} size=${treeSize} index=${index} entry-sha256=${entrySha256} model=${model}`;
  console.log(`OK ${facts} fingerprint=${fingerprint === null ? "none" : fingerprint}`);
  return 0;
}

const [first, second] = process.argv.slice(2);
if (second === undefined) {
  console.error("usage: receipt.mjs VERIFIER-KEY-FILE RECEIPT-FILE | --batch CASES-FILE");
  process.exitCode = 2;
} else {
  process.exitCode = await (first === "--batch" ? batch(second) : one(first, second));
}

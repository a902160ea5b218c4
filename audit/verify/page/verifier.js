"use strict";

// Checks a Bulkhead receipt. Written from docs/log-format.md and the public specifications that it names, apart from
// `bulkhead-verify`; the two must agree on every receipt. Plain JavaScript without a dependency: a browser runs it in the page,
// a test runs the same file in Node. Nothing here reads or sends anything: bytes come in, a report comes out.
const BulkheadVerifier = (() => {
  const forms = typeof module === "undefined" ? BulkheadForms : require("./forms.js");
  const { Refusal, Items, U32_MAX, encoder, tryUtf8, utf8, concat, equal, hex, base64, hashOf, decimal, sha256, u32 } = forms;

  const PROOF_BYTES_MAX = 772776;
  const CHECKPOINT_BYTES_MAX = 64 * 1024;
  const RESPONSE_BYTES_MAX = 64 * 1024 * 1024;
  const ENTRY_BYTES_MAX = 4096;
  const KEY_LINE_BYTES_MAX = 512;
  const PROOF_HASHES_MAX = 64;
  const SIGNATURES_MAX = 16;
  const TENANT_NAME_BYTES_MAX = 63;
  const TRACE_RUNS_MAX = 16384n;
  const TREE_SIZE_MAX = (1n << 63n) - 1n;
  const ED25519 = 1;
  const HEADER = "c2sp.org/tlog-proof@v1";

  const REASONS = ["stop", "length", "aborted", "error", "isolation", "crash"];
  const HANDOVERS = ["none", "relabel", "copy", "staged"];

  /** The browser cannot check signatures: neither genuine nor refused. */
  class Unsupported extends Error {}

  function must(condition, check, reason) {
    if (!condition) throw new Refusal(check, reason);
  }

  // The hashes of RFC 6962.

  const leafHash = (entry) => sha256(Uint8Array.of(0), entry);
  const nodeHash = (left, right) => sha256(Uint8Array.of(1), left, right);

  // Keys and signatures: C2SP signed-note with Ed25519 (RFC 8032).

  // Encodings of points of small order, whose signatures anybody can make.
  const WEAK_POINTS = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
  ];

  function isWeak(point) {
    return WEAK_POINTS.includes(hex(point));
  }

  // What Unicode calls white space, which no key's name has.
  const SPACE = /[\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/u;

  function isKeyName(name) {
    return name !== "" && !SPACE.test(name) && !name.includes("+");
  }

  /** A verifier key line: name, key id and key. Throws an `Error` that says what is wrong. */
  function parseKey(line) {
    const text = line.trim();
    const parts = /^([^+]*)\+([0-9a-f]{8})\+(.*)$/su.exec(text);
    if (!parts || encoder.encode(text).length > KEY_LINE_BYTES_MAX) throw new Error("This is not a verifier key line.");
    const [, name, id, encoded] = parts;
    const material = base64(encoded);
    const short = encoder.encode(name).length <= KEY_LINE_BYTES_MAX - 100;
    if (!isKeyName(name) || !short || /[\u0000-\u001f\u007f-\u009f]/u.test(name) || !material || material.length !== 33) {
      throw new Error("This is not a verifier key line.");
    }
    if (material[0] !== ED25519) throw new Error("This key is not a log's: it is for signatures of another kind.");
    const expected = sha256(encoder.encode(`${name}\n`), material).subarray(0, 4);
    if (hex(expected) !== id) throw new Error("The key id does not belong to the key and its name: the line was changed.");
    const key = material.subarray(1);
    if (isWeak(key)) throw new Error("This key accepts signatures of anybody.");
    return { name, id: expected, key, line: text };
  }

  async function verifySignature(key, message, signature) {
    if (signature.length !== 64 || isWeak(signature.subarray(0, 32))) return false;
    const subtle = globalThis.crypto && globalThis.crypto.subtle;
    if (!subtle) {
      throw new Unsupported(
        "This browser checks signatures only on pages that came over HTTPS, from this machine or from a file. Save this page and open the file.",
      );
    }
    let imported;
    try {
      imported = await subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
    } catch (error) {
      if (error && error.name === "DataError") return false;
      throw new Unsupported(
        "This browser cannot check Ed25519 signatures. Chrome and Edge from 137, Firefox from 129 and Safari from 17 can; so can `bulkhead-verify`.",
      );
    }
    return subtle.verify({ name: "Ed25519" }, imported, signature, message);
  }

  /** C2SP tlog-checkpoint under the log's key: exactly origin, size and root hash. */
  async function openCheckpoint(note, key) {
    const check = "signature";
    must(encoder.encode(note).length <= CHECKPOINT_BYTES_MAX, check, "the checkpoint is too long");
    const marked = note.split("\n").filter((line) => line.startsWith("\u2014 ")).length;
    must(marked <= SIGNATURES_MAX, check, "the checkpoint has too many signatures");
    must(!/[\u0000-\u0009\u000b-\u001f]/u.test(note), check, "the checkpoint is not a signed note");
    const at = note.lastIndexOf("\n\n");
    must(at >= 0 && note.endsWith("\n"), check, "the checkpoint is not a signed note");
    const text = note.slice(0, at + 1);
    const block = note.slice(at + 2);
    must(block.endsWith("\n"), check, "the checkpoint is not a signed note");
    let found = null;
    for (const line of block.slice(0, -1).split("\n")) {
      const parts = /^\u2014 ([^ ]*) (.*)$/su.exec(line);
      must(parts && isKeyName(parts[1]), check, "the checkpoint has a malformed signature line");
      const bytes = base64(parts[2]);
      must(bytes && bytes.length >= 5, check, "the checkpoint has a malformed signature line");
      // The first one counts, as in the reference.
      if (!found && parts[1] === key.name && equal(bytes.subarray(0, 4), key.id)) found = bytes.subarray(4);
    }
    const given = `${key.name}+${Array.from(key.id, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    must(found, check, `the checkpoint is not signed by the expected key, ${given}: one key is known here, and no change of it`);
    const genuine = await verifySignature(key.key, encoder.encode(text), found);
    must(genuine, check, "the checkpoint is not signed by the expected key");
    const lines = text.split("\n");
    must(lines.length === 4 && lines[0] !== "", check, "the checkpoint is not exactly origin, size and root hash");
    const [origin, size, root] = [lines[0], decimal(lines[1]), hashOf(lines[2])];
    const form = size !== null && size <= TREE_SIZE_MAX && root !== null;
    must(form, check, "the checkpoint is not exactly origin, size and root hash");
    must(origin === key.name, check, "the checkpoint's origin is not the key's name");
    return { origin, size, root };
  }

  // The tree: RFC 9162 section 2.1.3.2, step by step.

  function isIncluded(hashes, size, root, index, leaf) {
    if (index >= size || size > TREE_SIZE_MAX || hashes.length > PROOF_HASHES_MAX) return false;
    let [node, last, result] = [index, size - 1n, leaf];
    for (const sibling of hashes) {
      if (last === 0n) return false;
      if ((node & 1n) === 1n || node === last) {
        result = nodeHash(sibling, result);
        while ((node & 1n) === 0n && node !== 0n) [node, last] = [node >> 1n, last >> 1n];
      } else {
        result = nodeHash(result, sibling);
      }
      [node, last] = [node >> 1n, last >> 1n];
    }
    return last === 0n && equal(result, root);
  }

  // The file: C2SP tlog-proof.

  function parseProof(bytes) {
    const check = "format";
    must(bytes.length <= PROOF_BYTES_MAX, check, "the receipt is too long");
    const text = tryUtf8(bytes);
    must(text !== null, check, "the receipt is not text");
    let rest = text;
    const line = () => {
      const end = rest.indexOf("\n");
      if (end < 0) return null;
      const found = rest.slice(0, end);
      rest = rest.slice(end + 1);
      return found;
    };
    must(line() === HEADER, check, `the first line is not \`${HEADER}\``);
    let extra = null;
    if (rest.startsWith("extra ")) {
      const found = line();
      extra = found === null ? null : base64(found.slice("extra ".length));
      must(extra !== null, check, "the extra line is not base64");
    }
    const found = line();
    const index = found !== null && found.startsWith("index ") ? decimal(found.slice("index ".length)) : null;
    must(index !== null, check, "the index line is missing or malformed");
    const hashes = [];
    for (;;) {
      const found = line();
      must(found !== null, check, "the checkpoint is missing");
      if (found === "") break;
      const hash = hashOf(found);
      must(hash !== null && hashes.length < PROOF_HASHES_MAX, check, "a line is not the hash of an inclusion proof");
      hashes.push(hash);
    }
    must(rest !== "", check, "the checkpoint is missing");
    return { extra, index, hashes, checkpoint: rest };
  }

  function parseDisclosure(bytes) {
    const items = new Items(bytes, "disclosure");
    items.arrayOf(7);
    const version = items.uint();
    if (version !== 1n && version !== 2n) items.refuse(`version ${version} is not known`);
    const entry = () => {
      const bytes = items.byteString();
      if (bytes.length > ENTRY_BYTES_MAX) items.refuse("an entry is too long");
      return bytes;
    };
    const [sealed, opened, openedIndex, joined] = [entry(), entry(), items.uint(), items.byteString()];
    if (joined.length % 32 !== 0 || joined.length > 32 * PROOF_HASHES_MAX) items.refuse("the opened proof is malformed");
    const openedProof = [];
    for (let at = 0; at < joined.length; at += 32) openedProof.push(joined.subarray(at, at + 32));
    const openings = items.orNull(() => {
      items.arrayOf(version === 1n ? 5 : 6);
      const tenantName = items.text();
      if (encoder.encode(tenantName).length > TENANT_NAME_BYTES_MAX) items.refuse("the tenant's name is too long");
      const [request, tenant, response, chunks] = [items.fixed(32), items.fixed(32), items.fixed(32), items.fixed(32)];
      const replay = version === 1n ? null : items.orNull(() => items.fixed(32));
      return { tenantName, request, tenant, response, chunks, replay };
    });
    const trace = items.orNull(() => items.byteString());
    items.end();
    return { sealed, opened, openedIndex, openedProof, openings, trace };
  }

  const HEAD_FIELDS = 10;

  /** What every entry has; the body is still to be read. */
  function parseHead(bytes, name) {
    const items = new Items(bytes, "entry");
    if (bytes.length > ENTRY_BYTES_MAX) items.refuse(`the ${name} entry is too long`);
    const fields = items.array();
    const version = items.uint();
    if (version < 1n || version > 5n) items.refuse(`the ${name} entry has version ${version}, which is not known`);
    const kind = items.uint();
    const uuid = items.fixed(16);
    items.fixed(32);
    items.fixed(16);
    const wallUs = items.uint();
    items.uint();
    const tenant = items.orNull(() => items.fixed(16));
    const [number, previous] = [items.uint(), items.fixed(32)];
    if (tenant === null && (number !== 0n || previous.some((byte) => byte !== 0))) items.refuse("a number without a tenant");
    return { items, fields, version, kind, uuid, wallUs, tenant, number, previous };
  }

  function parseOpened(bytes) {
    const head = parseHead(bytes, "opened");
    const { items, version } = head;
    if (head.kind !== 1n) items.refuse("the opened entry is of another kind");
    const body = {
      epoch: items.uint(),
      request: items.fixed(32),
      tenantName: items.fixed(32),
      rules: items.fixed(32),
      determining: items.fixed(32),
      model: items.fixed(32),
      fingerprint: version >= 2n ? items.fixed(32) : null,
      build: items.fixed(32),
      stream: items.below(2) === 1,
    };
    items.below(1);
    items.end();
    if (head.fields !== BigInt(HEAD_FIELDS + (version >= 2n ? 10 : 9))) items.refuse("the opened entry has other fields");
    return { ...head, ...body };
  }

  function parseSealed(bytes) {
    const head = parseHead(bytes, "sealed");
    const { items, version } = head;
    if (head.kind !== 2n) items.refuse("the sealed entry is of another kind");
    const digest = () => items.orNull(() => items.fixed(32));
    const body = {
      requestId: items.fixed(16),
      openedIndex: items.uint(),
      openedLeaf: items.fixed(32),
      reason: REASONS[items.below(REASONS.length)],
      response: digest(),
      chain: digest(),
      chunks: items.uint(),
      steps: items.uint(),
      promptTokens: items.uint(),
      completionTokens: items.uint(),
      pages: { own: items.uint(), public: items.uint(), foreign: items.uint() },
      trace: digest(),
      queuedUs: items.uint(),
      prefillUs: items.uint(),
      decodeUs: items.uint(),
      coverage: items.below(16),
      replay: version >= 3n ? digest() : null,
    };
    items.end();
    if (head.fields !== BigInt(HEAD_FIELDS + (version >= 3n ? 19 : 18))) items.refuse("the sealed entry has other fields");
    return { ...head, ...body };
  }

  // Commitments: SHA-256("isolog/v1/" field 0x00 salt content).

  function commit(field, salt, ...content) {
    return sha256(encoder.encode(`isolog/v1/${field}\u0000`), salt, ...content);
  }

  function checkPair(index, sealed, opened, disclosure) {
    const same = (condition, what) =>
      must(condition, "pairing", `the sealed entry does not belong to the opened one: ${what} differs`);
    same(equal(sealed.requestId, opened.uuid), "the request");
    same(sealed.openedIndex === disclosure.openedIndex && disclosure.openedIndex < index, "the index");
    const openedLeaf = leafHash(disclosure.opened);
    same(equal(sealed.openedLeaf, openedLeaf), "the leaf hash");
    same(sealed.tenant && opened.tenant && equal(sealed.tenant, opened.tenant), "the tenant");
    const next = sealed.number === opened.number + 1n;
    same(sealed.number > opened.number && (!next || equal(sealed.previous, openedLeaf)), "the tenant's number");
  }

  function parseTrace(bytes) {
    const items = new Items(bytes, "trace");
    items.arrayOf(2);
    const runs = () => {
      const count = items.array();
      if (count > TRACE_RUNS_MAX) items.refuse("the trace has too many runs");
      return Number(count);
    };
    const trace = { pages: [], chunks: [] };
    for (let left = runs(); left > 0; left--) {
      items.arrayOf(5);
      const [page, generation, kind] = [items.uint32(), items.uint32(), items.below(4)];
      const [first, last] = [items.uint32(), items.uint32()];
      if (last < first) items.refuse("a page run ends before it begins");
      trace.pages.push({ page, generation, kind, first, last });
    }
    for (let left = runs(); left > 0; left--) {
      items.arrayOf(4);
      const [chunks, first, stride, span] = [items.uint32(), items.uint32(), items.uint32(), items.uint32()];
      if (chunks === 0n || first + chunks * stride + span > U32_MAX) items.refuse("a chunk run is out of range");
      trace.chunks.push({ chunks, first, stride, span });
    }
    items.end();
    return trace;
  }

  function checkTrace(bytes, sealed) {
    const check = "trace";
    must(sealed.trace && equal(sealed.trace, sha256(bytes)), check, "the trace is not the one that was sealed");
    const trace = parseTrace(bytes);
    // The step that a violation stopped was read and is not counted.
    const steps = sealed.steps + (sealed.reason === "isolation" ? 1n : 0n);
    const seen = new Set();
    const pages = { own: 0n, public: 0n, foreign: 0n };
    for (const run of trace.pages) {
      must(run.last < steps, check, "the trace has pages of steps that the entry does not count");
      const id = `${run.page}.${run.generation}.${run.kind}`;
      if (seen.has(id)) continue;
      seen.add(id);
      pages[["foreign", "public", "own", "foreign"][run.kind]] += 1n;
    }
    const same = ["own", "public", "foreign"].every((kind) => pages[kind] === sealed.pages[kind]);
    must(same, check, "the trace has other page counts than the entry");
    const chunks = trace.chunks.reduce((sum, run) => sum + run.chunks, 0n);
    must(chunks === sealed.chunks, check, "the trace has another number of chunks than the entry");
    return trace;
  }

  // Payloads: the data of server-sent events (WHATWG HTML section 9.2.6), or a whole body.

  const isAsciiSpace = (byte) => byte === 0x20 || byte === 0x09 || byte === 0x0a || byte === 0x0c || byte === 0x0d;

  function payloadsOf(response) {
    must(response.length <= RESPONSE_BYTES_MAX, "response", "the response is too long");
    let from = 0;
    let to = response.length;
    while (from < to && isAsciiSpace(response[from])) from++;
    if (from === to) return [];
    if (response[from] !== 0x7b) return eventsOf(response);
    // A newline that a shell or an editor added is not the server's.
    while (isAsciiSpace(response[to - 1])) to--;
    return [response.subarray(0, to)];
  }

  function eventsOf(response) {
    const payloads = [];
    let data = null;
    let isolation = false;
    let at = 0;
    while (at <= response.length) {
      let end = response.indexOf(0x0a, at);
      if (end < 0) end = response.length;
      const stop = end > at && response[end - 1] === 0x0d ? end - 1 : end;
      const line = response.subarray(at, stop);
      at = end + 1;
      if (line.length === 0) {
        if (data !== null && !isolation && !(data.length === 6 && tryUtf8(data) === "[DONE]")) payloads.push(data);
        data = null;
        isolation = false;
        continue;
      }
      const colon = line.indexOf(0x3a);
      const field = tryUtf8(line.subarray(0, colon < 0 ? line.length : colon));
      let value = colon < 0 ? new Uint8Array(0) : line.subarray(colon + 1);
      if (value[0] === 0x20) value = value.subarray(1);
      if (field === "data") {
        data = data === null ? value : concat(data, Uint8Array.of(0x0a), value);
      } else if (field === "event") {
        isolation = tryUtf8(value) === "isolation";
      } else {
        const known = field === "" || field === "id" || field === "retry";
        must(known, "response", "the response is neither a JSON body nor server-sent events");
      }
    }
    // An event that its empty line does not end was cut off: a client does not act on it.
    return payloads;
  }

  /** A JSON object with the one member `error`. */
  function isError(payload) {
    try {
      const value = JSON.parse(utf8(payload));
      const object = typeof value === "object" && value !== null && !Array.isArray(value);
      return object && Object.keys(value).length === 1 && Object.hasOwn(value, "error");
    } catch {
      return false;
    }
  }

  function checkResponse(response, openings, opened, sealed, trace) {
    const check = "response";
    must(
      sealed.response && sealed.chain,
      check,
      "the response ended in a crash of the log, so what was sent is not recorded",
    );
    const payloads = payloadsOf(response);
    // A response that was broken off ends with the server's error, which is not the model's and is in no chain.
    const brokenOff = sealed.reason !== "stop" && sealed.reason !== "length";
    const oneMore = BigInt(payloads.length) === sealed.chunks + 1n;
    if (brokenOff && oneMore && isError(payloads[payloads.length - 1])) payloads.pop();
    const differs = (part) => `the response is not the one that was sealed: ${part} differs`;
    must(BigInt(payloads.length) === sealed.chunks, check, differs("the number of payloads"));
    must(equal(commit("response", openings.response, ...payloads), sealed.response), check, differs("the text"));
    if (!trace) return;
    let head = commit("chunks", openings.chunks, opened.request);
    let place = 0;
    for (const run of trace.chunks) {
      for (let chunk = 0n; chunk < run.chunks && place < payloads.length; chunk++) {
        const payload = payloads[place++];
        const first = run.first + chunk * run.stride;
        head = sha256(head, u32(payload.length), payload, u32(first), u32(first + run.span));
      }
    }
    must(equal(head, sealed.chain), check, differs("the chunk chain"));
  }

  function requestIdText(bytes) {
    return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  }

  async function checkAll(receipt, keyLine, evidence, passed) {
    const key = parseKey(keyLine);
    const proof = parseProof(receipt);
    passed.push("format");
    const checkpoint = await openCheckpoint(proof.checkpoint, key);
    passed.push("signature");

    must(proof.extra !== null, "disclosure", "the receipt has no extra line, so there is no entry to check");
    const disclosure = parseDisclosure(proof.extra);
    const included = (name, bytes, index, hashes) => {
      const found = isIncluded(hashes, checkpoint.size, checkpoint.root, index, leafHash(bytes));
      must(found, "inclusion", `the ${name} entry: the proof does not lead to the root hash`);
    };
    included("sealed", disclosure.sealed, proof.index, proof.hashes);
    included("opened", disclosure.opened, disclosure.openedIndex, disclosure.openedProof);
    passed.push("inclusion");

    const [sealed, opened] = [parseSealed(disclosure.sealed), parseOpened(disclosure.opened)];
    checkPair(proof.index, sealed, opened, disclosure);
    passed.push("pairing");

    const { openings } = disclosure;
    if (openings) {
      const named = commit("tenant", openings.tenant, encoder.encode(openings.tenantName));
      must(equal(named, opened.tenantName), "tenant", "the tenant's name does not open its commitment");
      const fits = openings.replay === null || sealed.replay !== null;
      must(fits, "pairing", "the sealed entry does not belong to the opened one: the replay digest differs");
      passed.push("tenant");
    }
    const trace = disclosure.trace === null ? null : checkTrace(disclosure.trace, sealed);
    if (trace) passed.push("trace");
    const stopped = sealed.pages.foreign === 0n || sealed.reason === "isolation";
    must(stopped, "pages", `${sealed.pages.foreign} foreign pages were read and the response was not stopped`);
    // Without a trace the entry's own counts are all that there is to look at.
    passed.push(trace ? "pages" : "page counts");

    const salts = (content) =>
      must(openings, content, `the receipt holds no salts, so the ${content} cannot be compared`);
    if (evidence.request) {
      salts("request");
      const same = equal(commit("request", openings.request, evidence.request), opened.request);
      must(same, "request", "the request body is not the one that was recorded");
      passed.push("request");
    }
    if (evidence.response) {
      salts("response");
      checkResponse(evidence.response, openings, opened, sealed, trace);
      passed.push("response");
    }
    const missing = [
      ["tenant", !openings],
      ["trace", !trace],
      ["request", !evidence.request],
      ["response", !evidence.response],
      ["chunks", !evidence.response || !trace],
      ["replay", sealed.replay !== null],
    ];
    return {
      result: "genuine",
      checked: passed,
      unchecked: missing.filter(([, absent]) => absent).map(([part]) => part),
      origin: checkpoint.origin,
      treeSize: checkpoint.size,
      index: proof.index,
      openedIndex: disclosure.openedIndex,
      request: requestIdText(sealed.requestId),
      openedUs: opened.wallUs,
      sealedUs: sealed.wallUs,
      tenant: openings ? openings.tenantName : null,
      tenantRef: hex(sealed.tenant),
      tenantNumber: sealed.number,
      model: hex(opened.model),
      fingerprint: opened.fingerprint ? hex(opened.fingerprint) : null,
      build: hex(opened.build),
      rules: hex(opened.rules),
      stream: opened.stream,
      reason: sealed.reason,
      pages: sealed.pages,
      coverage: {
        labelGate: (sealed.coverage & 1) !== 0,
        kernelTags: (sealed.coverage & 2) !== 0,
        handover: HANDOVERS[sealed.coverage >> 2],
      },
      steps: sealed.steps,
      chunks: sealed.chunks,
      promptTokens: sealed.promptTokens,
      completionTokens: sealed.completionTokens,
      queuedUs: sealed.queuedUs,
      prefillUs: sealed.prefillUs,
      decodeUs: sealed.decodeUs,
      entrySha256: hex(sha256(disclosure.sealed)),
    };
  }

  /**
   * Checks a receipt (bytes) under a verifier key line, with the request body and the response (bytes) where they are at hand.
   * Gives a report: `result` is `genuine`, `refused` (with `check` and `reason`) or `unsupported` (with `reason`), and `checked`
   * has the checks that passed.
   * Throws when the key line is none.
   */
  async function checkReceipt(receipt, keyLine, evidence = {}) {
    const checked = [];
    try {
      return await checkAll(receipt, keyLine, evidence, checked);
    } catch (error) {
      if (error instanceof Refusal) return { result: "refused", check: error.check, reason: error.message, checked };
      if (error instanceof Unsupported) return { result: "unsupported", reason: error.message };
      throw error;
    }
  }

  return { checkReceipt, parseKey, HEADER };
})();

if (typeof module !== "undefined") module.exports = BulkheadVerifier;

"use strict";

// Shows what `verifier.js` finds. Everything is written as text: nothing of a receipt becomes part of the page's structure.
(() => {
  const FILE_BYTES_MAX = 64 * 1024 * 1024;
  const KEY_BYTES_MAX = 1024;

  const element = (id) => document.getElementById(id);
  const held = { receipt: null, request: null, response: null };
  let run = 0;

  const CHECKS = {
    format: "The file is a receipt and has its one form.",
    signature: "The log's key has signed the checkpoint that the receipt is under.",
    inclusion: "Both entries about your request stand in the log that was signed.",
    pairing: "The two entries belong together, and to one tenant.",
    tenant: "The entry is about the tenant that is named.",
    trace: "The list of pages that were read is the one that was recorded with the answer.",
    pages: "Every page that was read is listed, and whose it was.",
    "page counts": "The entry counts no page of another tenant, or the answer was stopped.",
    request: "The entry is about exactly this request.",
    response: "The entry is about exactly this response, and nothing of it is missing or changed.",
    disclosure: "What the receipt discloses has its form.",
    entry: "The entries have their form.",
  };

  const UNCHECKED = {
    tenant: "The tenant's name: the receipt holds no salts.",
    trace: "Which pages were read: the receipt holds no list of them, so the entry's counts are all there is.",
    request: "The request: give its body.",
    response: "The response: give it.",
    chunks: "In which pieces and from which steps the response was sent: it takes the response and the list of pages.",
    replay: "The bits of the answer: `bulkhead audit replay` computes them again, with the model.",
  };

  function date(us) {
    return `${new Date(Number(us / 1000n)).toISOString().replace("T", " ").replace("Z", "")} UTC`;
  }

  function milliseconds(us) {
    return `${(Number(us) / 1000).toFixed(1)} ms`;
  }

  function recorded(report) {
    if (report.reason === "isolation") {
      return report.chunks === 0n
        ? "An isolation fault stopped this response before its first byte left. The log has the incident."
        : "An isolation fault stopped this response after bytes had left. The log has the incident.";
    }
    if (report.reason === "crash") {
      return "The program ended before this response did; what it read and sent is not recorded.";
    }
    if (!report.checked.includes("trace")) {
      return "The log counts no page of another tenant for this response. The list that would show each page is not available.";
    }
    return "The log records that every page this response read was the tenant's own or public.";
  }

  function bodies(report) {
    const missing = ["request", "response"].filter((part) => report.unchecked.includes(part));
    return missing.length === 0 ? "" : ` It was not compared with the ${missing.join(" and the ")}.`;
  }

  function coverage({ labelGate, kernelTags, handover }) {
    const on = [];
    if (labelGate) on.push("labels of pages before each piece left");
    if (kernelTags) on.push("tags of pages where they are read");
    if (handover !== "none") on.push(`sealed handover of pages (${handover})`);
    return on.length === 0 ? "no check" : on.join(", ");
  }

  function facts(report) {
    const pages = report.pages;
    return [
      ["Log", `${report.origin}, ${report.treeSize} entries`],
      ["Request", report.request],
      ["Tenant", report.tenant === null ? "name not disclosed" : report.tenant],
      ["Time", `${date(report.openedUs)} to ${date(report.sealedUs)}`],
      ["Pages read", `${pages.own} own, ${pages.public} public, ${pages.foreign} foreign`],
      ["Checks that were on", coverage(report.coverage)],
      ["End", `${report.reason}, after ${report.steps} steps and ${report.chunks} payloads`],
      ["Tokens", `${report.promptTokens} prompt, ${report.completionTokens} completion`],
      [
        "Timings",
        `${milliseconds(report.queuedUs)} queued, ${milliseconds(report.prefillUs)} prefill, ${milliseconds(report.decodeUs)} decode`,
      ],
      ["Entries", `${report.openedIndex} opened, ${report.index} sealed; the tenant's number ${report.tenantNumber}`],
      ["Model (SHA-256)", report.model, "digest"],
      ["Fingerprint", report.fingerprint === null ? "not recorded in this version" : report.fingerprint, "digest"],
      ["Program (SHA-256)", report.build, "digest"],
      ["Rules (SHA-256)", report.rules, "digest"],
    ];
  }

  function line(state, word, text) {
    const item = document.createElement("li");
    item.className = state;
    const mark = document.createElement("span");
    mark.className = "state";
    mark.textContent = word;
    const said = document.createElement("span");
    said.textContent = text;
    item.append(mark, said);
    return item;
  }

  function show(state, verdict, meaning, checks = [], facts = []) {
    element("result").className = state;
    element("verdict").textContent = verdict;
    element("meaning").textContent = meaning;
    element("checks").replaceChildren(...checks);
    const list = [];
    for (const [name, value, kind] of facts) {
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = value;
      if (kind) description.className = kind;
      list.push(term, description);
    }
    element("facts").replaceChildren(...list);
    element("details").hidden = checks.length === 0;
    element("recorded").hidden = facts.length === 0;
  }

  function showReport(report) {
    const passed = (report.checked || []).map((check) => line("passed", "\u2713 passed", CHECKS[check]));
    if (report.result === "unsupported") {
      show("unsupported", "! Cannot be checked here", report.reason);
      return;
    }
    if (report.result === "refused") {
      const what = CHECKS[report.check] || report.check;
      const failed = line("failed", "\u2717 failed", `${what} It is not so: ${report.reason}.`);
      show("refused", "\u2717 Refused", `This receipt proves nothing: ${report.reason}.`, [...passed, failed]);
      return;
    }
    const open = report.unchecked.map((part) => line("open", "\u2013 open", UNCHECKED[part]));
    const good = report.reason !== "isolation" && report.reason !== "crash";
    const verdict = good ? "\u2713 Genuine" : "! Genuine, and it records a fault";
    show(good ? "genuine" : "fault", verdict, recorded(report) + bodies(report), [...passed, ...open], facts(report));
  }

  async function check() {
    const mine = ++run;
    const keyLine = element("key-line").value.trim();
    if (keyLine !== "") {
      try {
        BulkheadVerifier.parseKey(keyLine);
      } catch (error) {
        show("waiting", "The log's key cannot be used", error.message);
        element("key-line").setAttribute("aria-invalid", "true");
        return;
      }
    }
    element("key-line").removeAttribute("aria-invalid");
    if (held.receipt === null || keyLine === "") {
      const missing = [];
      if (held.receipt === null) missing.push("the receipt");
      if (keyLine === "") missing.push("the log's key");
      show("waiting", "Nothing is checked yet", `Give ${missing.join(" and ")}.`);
      return;
    }
    const evidence = { request: held.request, response: held.response };
    let report;
    try {
      report = await BulkheadVerifier.checkReceipt(held.receipt, keyLine, evidence);
    } catch (error) {
      report = { result: "unsupported", reason: `The check itself failed: ${error.message}` };
    }
    // What was given meanwhile is being checked, and this is no longer the answer.
    if (mine === run) showReport(report);
  }

  function notice(text) {
    element("notice").textContent = text;
    element("notice").hidden = text === "";
  }

  /** What a dropped file is: by its first bytes, not by its name. */
  function kindOf(bytes) {
    const text = new TextDecoder().decode(bytes.subarray(0, 1 << 20));
    if (text.startsWith("c2sp.org/tlog-proof")) return "receipt";
    if (bytes.length <= KEY_BYTES_MAX && /^[^\s+{]+\+[0-9a-f]{8}\+\S+\s*$/u.test(text)) return "key";
    const start = text.trimStart();
    if (/^(data|event|id|retry)?:/u.test(start)) return "response";
    if (start.startsWith("{")) {
      if (/"(choices|error|system_fingerprint)"\s*:/u.test(start)) return "response";
      if (/"(messages|prompt)"\s*:/u.test(start)) return "request";
    }
    return null;
  }

  async function take(file, kind) {
    if (file.size > FILE_BYTES_MAX) {
      notice(`${file.name} is larger than 64 MiB.`);
      return;
    }
    let bytes;
    try {
      bytes = new Uint8Array(await file.arrayBuffer());
    } catch {
      notice(`${file.name} cannot be read.`);
      return;
    }
    const found = kind || kindOf(bytes);
    if (found === null) {
      notice(`${file.name} is neither a receipt, a key, a request nor a response that this page knows. Choose it where it belongs.`);
      return;
    }
    if (found === "key") {
      element("key-line").value = bytes.length <= KEY_BYTES_MAX ? new TextDecoder().decode(bytes).trim() : "not a key";
    } else {
      held[found] = bytes;
    }
    const input = element(`file-${found}`);
    const hint = element(`hint-${found}`);
    if (!hint.dataset.said) hint.dataset.said = hint.textContent;
    hint.textContent = `${file.name}, ${bytes.length} bytes`;
    input.dataset.held = file.name;
  }

  async function takeAll(files, kind) {
    notice("");
    for (const file of files) await take(file, kind);
    await check();
  }

  function clear(kind) {
    if (kind !== "key") held[kind] = null;
    const hint = element(`hint-${kind}`);
    if (hint.dataset.said) hint.textContent = hint.dataset.said;
  }

  for (const kind of ["receipt", "key", "request", "response"]) {
    element(`file-${kind}`).addEventListener("change", (event) => {
      const files = [...event.target.files];
      if (files.length === 0) clear(kind);
      takeAll(files, kind);
    });
  }
  element("key-line").addEventListener("input", () => {
    clear("key");
    check();
  });
  element("reset").addEventListener("click", () => {
    for (const kind of ["receipt", "key", "request", "response"]) {
      element(`file-${kind}`).value = "";
      clear(kind);
    }
    element("key-line").value = "";
    notice("");
    check();
    element("file-receipt").focus();
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) document.body.classList.remove("dragging");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    takeAll([...event.dataTransfer.files], null);
  });
  check();
})();

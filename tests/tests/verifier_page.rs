//! The page that checks receipts, in a real browser: from the gateway and from a file, with a good receipt and with bad ones.

use anyhow::{Context, Result, ensure};
use e2e::{Browser, Client, Demo, binary, chat, run};
use serde_json::{Value, json};
use std::process::Command;

/// A receipt and what belongs to it.
struct Kept {
    receipt: String,
    key: String,
    request: String,
    response: String,
}

fn keep(demo: &Demo, acme: &Client) -> Result<Kept> {
    let request = chat(&demo.model, "Name three colours.", 12, true).to_string();
    let (head, events) = acme.stream("/v1/chat/completions", &serde_json::from_str(&request)?)?;
    let id = head.header("x-isolation-id").context("no isolation id")?.to_owned();
    let mut response = String::new();
    for event in events {
        let event = event?;
        if !event.name.is_empty() {
            response += &format!("event: {}\n", event.name);
        }
        response += &format!("data: {}\n\n", event.data);
    }
    let key = acme.get("/v1/isolation/key")?.text()?;
    Ok(Kept { receipt: acme.receipt(&id)?, key, request, response })
}

/// Drops files on the page, as a person does with a mouse.
fn drop_files(browser: &Browser, files: &[(&str, &str)]) -> Result<()> {
    let script = "const files = new DataTransfer();
        for (const [name, text] of arguments[0]) files.items.add(new File([text], name));
        document.dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));";
    browser.run(script, &json!(files)).map(drop)
}

/// Waits for a verdict, and gives all that the page shows of it.
fn verdict(browser: &Browser, state: &str) -> Result<String> {
    let shows = format!("return document.getElementById('result').className === '{state}'");
    if let Err(error) = browser.until(&shows) {
        anyhow::bail!("{error}: {}", text(browser)?);
    }
    text(browser)
}

fn text(browser: &Browser) -> Result<String> {
    let shown = browser.run("return document.getElementById('result').innerText", &Value::Null)?;
    Ok(shown.as_str().context("no text")?.to_owned())
}

#[test]
fn a_person_sees_what_a_receipt_proves_and_that_a_changed_one_proves_nothing() -> Result<()> {
    let demo = Demo::start()?;
    let acme = demo.client(0)?;
    let kept = keep(&demo, &acme)?;
    let nobody = Client::new(demo.address, None);
    let answer = nobody.get("/verify")?;
    ensure!(answer.status == 200 && answer.header("cache-control") == Some("no-cache"));
    ensure!(answer.header("content-type") == Some("text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").context("no policy")?;
    for rule in
        ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "script-src 'sha256-"]
    {
        ensure!(policy.contains(rule), "no `{rule}` in {policy}");
    }
    ensure!(!policy.contains("unsafe") && answer.header("x-content-type-options") == Some("nosniff"));
    ensure!(nobody.post("/verify", &json!({}))?.status == 405);

    let browser = Browser::start()?;
    let page = format!("http://{}/verify", demo.address);
    browser.open(&page)?;
    ensure!(text(&browser)?.contains("Nothing is checked yet"));
    drop_files(&browser, &[("receipt.txt", &kept.receipt)])?;
    browser.until("return document.getElementById('meaning').textContent === 'Give the log\\'s key.'")?;
    drop_files(&browser, &[("log.vkey", &kept.key)])?;
    let shown = verdict(&browser, "genuine")?;
    ensure!(
        shown.contains("Genuine") && shown.contains("It was not compared with the request and the response."),
        "{shown}"
    );
    ensure!(shown.contains("0 foreign") && shown.contains("acme") && shown.contains("label"), "{shown}");
    drop_files(&browser, &[("request.json", &kept.request), ("answer.sse", &kept.response)])?;
    browser.until("return document.getElementById('meaning').textContent.endsWith('own or public.')")?;
    let shown = verdict(&browser, "genuine")?;
    ensure!(shown.contains("exactly this request") && shown.contains("exactly this response"), "{shown}");
    ensure!(browser.complaints()?.is_empty(), "{:?}", browser.complaints()?);

    // One word of the answer, one character of the receipt, another key; and everything right again.
    let changed = kept.response.replacen("\"content\":\"", "\"content\":\"not ", 1);
    ensure!(changed != kept.response);
    drop_files(&browser, &[("answer.sse", &changed)])?;
    let shown = verdict(&browser, "refused")?;
    ensure!(shown.contains("Refused") && shown.contains("the response is not the one that was sealed"), "{shown}");
    drop_files(&browser, &[("answer.sse", &kept.response)])?;
    verdict(&browser, "genuine")?;
    let at = kept.receipt.len() / 3;
    let other = if kept.receipt.as_bytes()[at] == b'A' { "B" } else { "A" };
    drop_files(&browser, &[("receipt.txt", &format!("{}{other}{}", &kept.receipt[..at], &kept.receipt[at + 1..]))])?;
    ensure!(verdict(&browser, "refused")?.contains("proves nothing"));
    drop_files(&browser, &[("receipt.txt", &kept.receipt)])?;
    verdict(&browser, "genuine")?;
    let stranger = Demo::start()?;
    let foreign = stranger.client(0)?.get("/v1/isolation/key")?.text()?;
    drop_files(&browser, &[("other.vkey", &foreign)])?;
    ensure!(verdict(&browser, "refused")?.contains("not signed by the expected key"));
    browser.run("document.getElementById('reset').click()", &Value::Null)?;
    verdict(&browser, "waiting")?;
    drop_files(&browser, &[("notes.txt", "nothing of the kind")])?;
    browser.until("return document.getElementById('notice').textContent.startsWith('notes.txt is neither')")?;

    // Nothing was loaded, and nothing may be sent.
    let loaded = browser.run("return performance.getEntriesByType('resource').length", &Value::Null)?;
    ensure!(loaded == 0, "{loaded} things were loaded");
    let sent = browser.wait_for("fetch('/healthz')")?;
    ensure!(sent.as_str().is_some_and(|said| said.starts_with("failed")), "{sent}");
    Ok(())
}

#[test]
fn the_page_works_from_a_file_with_a_keyboard_and_with_a_screen_reader() -> Result<()> {
    let demo = Demo::start()?;
    let kept = keep(&demo, &demo.client(0)?)?;
    demo.stop()?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let page = run(Command::new(binary("bulkhead-verify")?).arg("page"))?;
    for (name, content) in [
        ("verify.html", page.stdout.as_slice()),
        ("receipt", kept.receipt.as_bytes()),
        ("request", kept.request.as_bytes()),
        ("response", kept.response.as_bytes()),
    ] {
        std::fs::write(path(name), content)?;
    }
    let browser = Browser::start()?;
    browser.open(&format!("file://{}", path("verify.html")))?;
    // Everything is reached with the tabulator, in order, and has a name that is spoken.
    browser.until("return document.readyState === 'complete'")?;
    let mut first = browser.tab()?;
    // A key that comes before the window has been drawn moves nothing: what has the focus then is the page.
    for _ in 0..3 {
        if first.is_empty() {
            first = browser.tab()?;
        }
    }
    let mut reached = vec![first];
    for _ in 1..6 {
        reached.push(browser.tab()?);
    }
    let wanted = ["file-receipt", "key-line", "file-key", "file-request", "file-response", "reset"];
    ensure!(reached == wanted, "{reached:?}");
    for (id, name) in
        wanted.iter().zip(["Receipt", "The log's key", "The log's key, as a file", "Request", "Response", "Start over"])
    {
        let (role, said) = browser.spoken(&format!("#{id}"))?;
        ensure!(said.starts_with(name) && (role == "button" || role == "textbox"), "{id}: {role} {said}");
    }
    ensure!(browser.spoken("#announced")?.0 == "status", "a verdict is announced");

    browser.type_into("#file-receipt", &path("receipt"))?;
    browser.type_into("#key-line", kept.key.trim())?;
    browser.type_into("#file-request", &path("request"))?;
    browser.type_into("#file-response", &path("response"))?;
    browser.until("return document.getElementById('meaning').textContent.endsWith('own or public.')")?;
    ensure!(verdict(&browser, "genuine")?.contains("exactly this response"));
    ensure!(browser.complaints()?.is_empty(), "{:?}", browser.complaints()?);

    // Light and dark are two pairs of colours, each of them with enough contrast.
    let contrast = "const shade = ([r, g, b]) => [r, g, b].map(x => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
            .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
        const colour = text => text.match(/[0-9]+/g).slice(0, 3).map(Number);
        const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const ground = element => { for (; element; element = element.parentElement) {
            const found = getComputedStyle(element).backgroundColor;
            if (found !== 'rgba(0, 0, 0, 0)') return found; } return 'rgb(255, 255, 255)'; };
        return Math.min(...[...document.querySelectorAll('h1, h2, p, dt, dd, li span, label, button')]
            .filter(element => element.offsetParent !== null)
            .map(element => ratio(shade(colour(getComputedStyle(element).color)), shade(colour(ground(element))))));";
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.emulate("prefers-color-scheme", scheme)?;
        let least = browser.run(contrast, &Value::Null)?.as_f64().context("no number")?;
        ensure!(least >= 4.5, "{scheme}: the least contrast is {least}");
        grounds.push(browser.run("return getComputedStyle(document.body).backgroundColor", &Value::Null)?);
    }
    ensure!(grounds[0] != grounds[1]);

    // Where signatures cannot be checked the page says so, and neither green nor red.
    browser.run("Object.defineProperty(globalThis, 'crypto', {value: {}})", &Value::Null)?;
    drop_files(&browser, &[("receipt", &kept.receipt)])?;
    ensure!(verdict(&browser, "unsupported")?.contains("HTTPS"));
    Ok(())
}

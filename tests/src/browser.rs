//! A browser without a window, over WebDriver: what a person sees and does on a page.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Where Debian puts the browser and its driver.
const BROWSER: &str = "/usr/bin/chromium";
const DRIVER: &str = "/usr/bin/chromedriver";
/// No step of a test takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often and how long a page is looked at until it says what it should.
const LOOKS_MAX: u32 = 200;
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The name of an element in WebDriver's JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One browser with a profile of its own; ended when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    agent: ureq::Agent,
    base: String,
    session: String,
    _profile: TempDir,
}

/// Ends the driver when the session was not begun.
struct Started(Option<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut driver) = self.0.take() {
            let _gone = driver.kill();
            let _reaped = driver.wait();
        }
    }
}

impl Browser {
    /// Starts it.
    ///
    /// # Errors
    /// When browser or driver are not there; `./x test` installs them.
    pub fn start() -> Result<Self> {
        for program in [BROWSER, DRIVER] {
            ensure!(Path::new(program).exists(), "{program} is not there: apt-get install chromium chromium-driver");
        }
        let profile = tempfile::tempdir()?;
        let mut driver = Command::new(DRIVER);
        driver.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut started = Started(Some(driver.spawn().context("the driver does not start")?));
        let out = started.0.as_mut().and_then(|driver| driver.stdout.take()).context("no stdout")?;
        let mut lines = BufReader::new(out).lines();
        let port = loop {
            let line = lines.next().context("the driver ended")??;
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        // What it says later is read, so that it never waits for somebody who does.
        std::thread::spawn(move || lines.for_each(drop));
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        let agent = ureq::Agent::new_with_config(config.build());
        let base = format!("http://127.0.0.1:{port}");
        let data = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1000,1400",
            &data,
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let begun = ask(&agent, &format!("{base}/session"), Some(&capabilities))?;
        let session = begun["sessionId"].as_str().context("no session")?.to_owned();
        let driver = started.0.take().context("no driver")?;
        Ok(Self { driver, agent, base, session, _profile: profile })
    }

    fn path(&self, what: &str) -> String {
        format!("{}/session/{}/{what}", self.base, self.session)
    }

    /// Opens a page.
    ///
    /// # Errors
    /// When the browser says so.
    pub fn open(&self, url: &str) -> Result<()> {
        ask(&self.agent, &self.path("url"), Some(&json!({"url": url}))).map(drop)
    }

    /// What a script gives back.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, script: &str, arguments: &Value) -> Result<Value> {
        ask(&self.agent, &self.path("execute/sync"), Some(&json!({"script": script, "args": [arguments]})))
    }

    /// What a promise comes to.
    ///
    /// # Errors
    /// When it fails.
    pub fn wait_for(&self, promise: &str) -> Result<Value> {
        let script = format!(
            "const done = arguments[arguments.length - 1]; ({promise}).then(done, error => done('failed: ' + error))"
        );
        ask(&self.agent, &self.path("execute/async"), Some(&json!({"script": script, "args": []})))
    }

    /// Looks until the script gives something true.
    ///
    /// # Errors
    /// When it does not in ten seconds.
    pub fn until(&self, script: &str) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            if self.run(script, &Value::Null)? == true {
                return Ok(());
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        bail!("not so within ten seconds: {script}")
    }

    fn element(&self, selector: &str) -> Result<String> {
        let found =
            ask(&self.agent, &self.path("element"), Some(&json!({"using": "css selector", "value": selector})))?;
        Ok(found[ELEMENT].as_str().context("no element")?.to_owned())
    }

    /// Types into an element, or gives it a file by its path.
    ///
    /// # Errors
    /// When there is no such element.
    pub fn type_into(&self, selector: &str, text: &str) -> Result<()> {
        let path = format!("element/{}/value", self.element(selector)?);
        ask(&self.agent, &self.path(&path), Some(&json!({"text": text}))).map(drop)
    }

    /// Presses the tabulator, and says on which element that leads.
    ///
    /// # Errors
    /// When the browser says so.
    pub fn tab(&self) -> Result<String> {
        let key = |kind: &str| json!({"type": kind, "value": "\u{e004}"});
        let actions = json!({"actions": [{"type": "key", "id": "keys", "actions": [key("keyDown"), key("keyUp")]}]});
        ask(&self.agent, &self.path("actions"), Some(&actions))?;
        let focused = self.run("return document.activeElement.id", &Value::Null)?;
        Ok(focused.as_str().unwrap_or_default().to_owned())
    }

    /// What assistive software says of an element: its role and its name.
    ///
    /// # Errors
    /// When there is no such element.
    pub fn spoken(&self, selector: &str) -> Result<(String, String)> {
        let element = self.element(selector)?;
        let said = |what: &str| -> Result<String> {
            let said = ask(&self.agent, &self.path(&format!("element/{element}/{what}")), None)?;
            Ok(said.as_str().unwrap_or_default().to_owned())
        };
        Ok((said("computedrole")?, said("computedlabel")?))
    }

    /// Gives the page another media feature, `prefers-color-scheme` for example.
    ///
    /// # Errors
    /// When the browser says so.
    pub fn emulate(&self, name: &str, value: &str) -> Result<()> {
        let features = json!({"features": [{"name": name, "value": value}]});
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": features});
        ask(&self.agent, &self.path("goog/cdp/execute"), Some(&command)).map(drop)
    }

    /// What the browser complained of since it was asked last.
    ///
    /// # Errors
    /// When it does not say.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let said = ask(&self.agent, &self.path("se/log"), Some(&json!({"type": "browser"})))?;
        let lines = said.as_array().context("no list")?.iter();
        let severe = lines.filter(|line| line["level"] != "INFO" && line["level"] != "DEBUG");
        Ok(severe.map(|line| line["message"].to_string()).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser first, which would outlive its driver.
        let _gone = self.agent.delete(format!("{}/session/{}", self.base, self.session)).call();
        let _killed = self.driver.kill();
        let _reaped = self.driver.wait();
    }
}

/// One question to the driver. Without a body it is a GET.
fn ask(agent: &ureq::Agent, url: &str, body: Option<&Value>) -> Result<Value> {
    let mut answer = match body {
        Some(body) => agent.post(url).header("content-type", "application/json").send(body.to_string().as_bytes())?,
        None => agent.get(url).call()?,
    };
    let text = answer.body_mut().read_to_string()?;
    let mut said: Value = serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))?;
    ensure!(answer.status().is_success(), "{}: {}", said["value"]["error"], said["value"]["message"]);
    Ok(said["value"].take())
}

//! A headless Chromium, driven over the DevTools protocol.
//!
//! `--remote-debugging-pipe` reads commands from file descriptor 3 and writes answers to 4, JSON texts ended by a zero
//! byte. A shell maps the two to its own standard input and output, so that no port and no library is needed.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::needs;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
    --window-size=1400,1000 --remote-debugging-pipe";
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    next: u64,
    /// Addresses that the page asked for, itself included.
    requests: Vec<String>,
    /// What the console, the policy and dialogs said.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser, or says that there is none.
    #[track_caller]
    pub fn start() -> Option<Self> {
        let is_there = |name: &&&str| {
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        let Some(name) = NAMES.iter().find(is_there) else {
            needs::skip(needs::Need::Browser);
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let script = format!(
            "exec {name} {FLAGS} --user-data-dir='{}' about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            profile.path().display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Self {
            child,
            to,
            from,
            session: String::new(),
            next: 1,
            requests: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().to_string();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a page and waits until its script is done.
    pub fn open(&mut self, page: &Path) {
        self.ask("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        self.wait("document.documentElement.dataset.ready === 'yes'");
    }

    /// Returns the value of an expression.
    pub fn run(&mut self, expression: &str) -> Value {
        let answer = self.evaluate(expression).expect("the page stays while it is asked");
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    fn evaluate(&mut self, expression: &str) -> Option<Value> {
        self.try_ask(
            "Runtime.evaluate",
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true }),
        )
        .ok()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let begin = Instant::now();
        // The page before may go in the middle of a question; what it answered does not count.
        let lenient = format!("(() => {{ try {{ return {expression} }} catch {{ return false }} }})()");
        while self.evaluate(&lenient).is_none_or(|answer| answer["result"]["value"] != json!(true)) {
            assert!(begin.elapsed() < PATIENCE, "never true: {expression}; {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses keys, one after the other, and lets the page draw.
    pub fn keys(&mut self, keys: &[&str]) {
        for key in keys {
            for kind in ["rawKeyDown", "keyUp"] {
                self.ask("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
            }
            self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))");
        }
    }

    /// Types into the search field.
    pub fn find(&mut self, words: &str) {
        let words = json!(words);
        self.run(&format!(
            "(() => {{ const f = document.getElementById('find'); f.value = {words}; f.dispatchEvent(new Event('input')); }})()"
        ));
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))");
    }

    /// Asserts that the page has fetched nothing, logged nothing and asked nothing.
    pub fn assert_clean(&mut self) {
        self.run("1");
        let fetched: Vec<&String> =
            self.requests.iter().filter(|url| !url.starts_with("data:")).skip(1).collect();
        assert!(fetched.is_empty(), "fetched {fetched:?}");
        assert!(self.complaints.is_empty(), "{:?}", self.complaints);
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.try_ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.to.flush().unwrap();
        loop {
            let mut bytes = Vec::new();
            let n = self.from.read_until(0, &mut bytes).unwrap();
            assert!(n > 0, "the browser has gone");
            bytes.pop();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == json!(id) {
                return if answer["error"].is_null() {
                    Ok(answer["result"].clone())
                } else {
                    Err(answer["error"].clone())
                };
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or_default().to_string());
            }
            "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
                self.complaints.push(params.to_string());
            }
            "Page.javascriptDialogOpening" => self.complaints.push(format!("dialog: {params}")),
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

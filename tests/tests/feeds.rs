//! A gateway and what its engine says of itself, read by the auditor program.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Program, binary, chat, model_path, run};
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

struct Site {
    folder: TempDir,
    keys: Vec<String>,
    tenants: String,
}

impl Site {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (mut keys, mut tenants) = (Vec::new(), String::new());
        for tenant in ["acme", "globex"] {
            let data = folder.path().join("data").display().to_string();
            let made = run(Command::new(binary("bulkhead")?).args(["key", "new", tenant, "--data-dir", &data]))?;
            let said = String::from_utf8(made.stderr)?;
            keys.push(said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned());
            tenants += &String::from_utf8(made.stdout)?;
        }
        Ok(Self { folder, keys, tenants })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A gateway with these settings of its engine and its log.
    fn serve(&self, engine: &str, audit: &str) -> Result<(Program, Vec<Client>)> {
        let cache = binary("bulkhead")?.with_file_name("weights-cache");
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {cache:?}\n\
             [engine]\nthreads = 2\n{engine}\n[audit]\n{audit}\n{}",
            model_path()?,
            self.tenants,
        );
        std::fs::write(self.path("bulkhead.toml"), config)?;
        let mut gateway = Program::start(["serve", "--config", &self.path("bulkhead.toml").display().to_string()])?;
        let line = gateway.wait_for("listening on http://")?;
        let address = line.rsplit_once("http://").context("no address")?.1.trim().parse()?;
        Ok((gateway, self.keys.iter().map(|key| Client::new(address, Some(key))).collect()))
    }

    /// What an auditor says who reads all of it.
    fn check(&self) -> Result<(Option<i32>, String)> {
        let mut command = Command::new(binary("bulkhead-auditor")?);
        command.arg("check").arg("--log").arg(self.path("data/log")).arg("--key").arg(self.path("data/log/log.vkey"));
        let Output { status, stdout, stderr } = command.arg("--feeds").arg(self.path("data/feeds")).output()?;
        Ok((status.code(), String::from_utf8(stdout)? + &String::from_utf8(stderr)?))
    }

    fn feed(&self) -> Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(self.path("data/feeds/engine"))?;
        let mut files: Vec<PathBuf> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        files.retain(|file| file.file_name().is_some_and(|name| name != "lock"));
        files.sort();
        Ok(files)
    }
}

/// Requests of both tenants at once, some of which begin alike, are long, repeat themselves, or are left by their clients.
fn ask(clients: &[Client]) -> Result<usize> {
    let prompts = [
        "Name a river.".to_owned(),
        "Say the word again and again: tick tick tick tick tick tick tick tick".to_owned(),
        format!("{} Which of them is the largest?", "A list of cities: Rome, Oslo, Lima, Cairo, Quito. ".repeat(8)),
    ];
    std::thread::scope(|scope| {
        let mut asked = Vec::new();
        for client in clients {
            for (number, prompt) in prompts.iter().chain(&prompts).enumerate() {
                asked.push(scope.spawn(move || -> Result<()> {
                    let body = chat("smol", prompt, 24, number % 2 == 1).to_string();
                    let answer = client.post_bytes("/v1/chat/completions", body.as_bytes())?;
                    ensure!(answer.status == 200, "{}", answer.status);
                    Ok(())
                }));
            }
        }
        let count = asked.len();
        for asked in asked {
            asked.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(count)
    })
}

#[test]
fn the_engine_says_of_every_response_what_the_log_says() -> Result<()> {
    // Few pages, so that requests give way to each other and come back.
    for engine in [
        "pages = 64\nsplit = \"off\"",
        "pages = 64\nsplit = \"relabel\"",
        "pages = 64\nsplit = \"copy\"",
        "pages = 40\nsplit = \"off\"\nswap_mib = 0\nprefix_cache = false",
        "pages = 512\nspeculation = false",
    ] {
        let site = Site::new()?;
        let (gateway, clients) = site.serve(engine, "")?;
        let asked = ask(&clients)? + ask(&clients)?;
        gateway.stop()?;
        let (code, said) = site.check()?;
        let wanted = format!("of {asked} the engine says the same, of 0 not all");
        ensure!(code == Some(0) && said.contains(&wanted), "{engine}: {said}");
    }
    Ok(())
}

#[test]
fn a_feed_goes_on_with_the_next_run_and_what_is_taken_out_of_it_is_missed() -> Result<()> {
    let site = Site::new()?;
    let mut asked = 0;
    for _ in 0..2 {
        let (gateway, clients) = site.serve("pages = 256", "")?;
        asked += ask(&clients)?;
        gateway.stop()?;
    }
    let (code, said) = site.check()?;
    ensure!(code == Some(0) && said.contains(&format!("of {asked} the engine says the same, of 0 not all")), "{said}");
    let files = site.feed()?;
    ensure!(files.len() == 2, "{files:?}");
    // Half of a run is gone: the end, and the middle.
    let bytes = std::fs::read(&files[1])?;
    std::fs::write(&files[1], &bytes[..bytes.len() / 2])?;
    let (code, said) = site.check()?;
    ensure!(
        code == Some(1) && said.contains("OBJECTION") && said.contains("the engine's feed does not have all"),
        "{said}"
    );
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&files[1], damaged)?;
    let (code, said) = site.check()?;
    ensure!(code == Some(1) && said.contains("OBJECTION"), "{said}");
    std::fs::write(&files[1], bytes)?;
    ensure!(site.check()?.0 == Some(0));
    // A feed that is gone is missed, ...
    std::fs::remove_dir_all(site.path("data/feeds"))?;
    let (gateway, clients) = site.serve("pages = 256", "feed_mib = 0")?;
    asked += ask(&clients)?;
    gateway.stop()?;
    ensure!(!site.path("data/feeds").exists());
    let (code, said) = site.check()?;
    ensure!(
        code == Some(1) && said.contains(&format!("of {asked} of {asked} responses the engine's feed does not")),
        "{said}"
    );
    // ... and what is older than the feed is not missing in it.
    let (gateway, clients) = site.serve("pages = 256", "")?;
    let asked = ask(&clients)?;
    gateway.stop()?;
    let (code, said) = site.check()?;
    ensure!(code == Some(0) && said.contains(&format!("of {asked} the engine says the same, of 0 not all")), "{said}");
    Ok(())
}

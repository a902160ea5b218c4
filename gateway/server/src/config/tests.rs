//! Configurations that are read, and mistakes that are named.

use super::*;
use audit_log::CosignerRole;
use engine_runtime::{Class, TenantTerms};
use policies_domain::TenantId;

const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn mistakes(text: &str) -> Vec<String> {
    match Config::parse(text).unwrap_err() {
        ParseConfigError::Mistakes { mistakes } => mistakes.iter().map(ToString::to_string).collect(),
        other => vec![other.to_string()],
    }
}

#[test]
fn probes_are_tenants_with_a_key() {
    let config = |audit: &str| {
        format!(
            "data_dir = \"d\"\nmodel = \"m\"\n[[tenants]]\nname = \"acme\"\nkey_hash = \"{HASH}\"\n[audit]\n{audit}\n"
        )
    };
    let read = Config::parse(&config("probes = [\"acme\"]")).unwrap();
    assert_eq!(read.probes.iter().map(TenantName::as_str).collect::<Vec<_>>(), ["acme"]);
    assert!(Config::parse(&config("")).unwrap().probes.is_empty());
    for probes in ["[\"globex\"]", "[\"acme\", \"globex\"]", "\"acme\"", "[1]", "[\"Acme\"]"] {
        let wanted = "`audit.probes` must be a list of names of tenants that have a key";
        assert_eq!(mistakes(&config(&format!("probes = {probes}"))), [wanted], "{probes}");
    }
    assert_eq!(mistakes(&config("probe = []")), ["`audit.probe` is not a setting"]);
}

#[test]
fn the_detectors_are_tried_each_hour_unless_it_is_said_otherwise() {
    let config = |audit: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n[audit]\n{audit}\n");
    let read = |audit: &str| Config::parse(&config(audit)).unwrap().self_test_period;
    assert_eq!(read(""), Some(Duration::from_secs(3_600)));
    assert_eq!(read("self_test_seconds = 1"), Some(Duration::from_secs(1)));
    assert_eq!(read("self_test_seconds = 604800"), Some(Duration::from_secs(604_800)));
    assert_eq!(read("self_test_seconds = 0"), None);
    for wrong in ["-1", "604801", "1.5", "'1'", "true"] {
        let wanted = "`audit.self_test_seconds` must be a whole number of seconds from 0 to 604800";
        assert_eq!(mistakes(&config(&format!("self_test_seconds = {wrong}"))), [wanted], "{wrong}");
    }
}

#[test]
fn a_signer_is_a_program_and_its_arguments() {
    let config = |audit: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n[audit]\n{audit}\n");
    let read = |audit: &str| Config::parse(&config(audit)).unwrap().signer;
    assert_eq!(read("signer = ['bulkhead-signer', 'file']"), ["bulkhead-signer", "file"]);
    assert!(read("").is_empty());
    for wrong in ["'bulkhead-signer'", "[]", "['', 'file']", "['bulkhead-signer', 7]"] {
        let wanted = "`audit.signer` must be a list of words, a program and its arguments";
        assert_eq!(mistakes(&config(&format!("signer = {wrong}"))), [wanted], "{wrong}");
    }
}

#[test]
fn witnesses_have_an_address_and_a_key() {
    const KEY: &str = "witness.example/w1+6de5ed03+BPj5qgqKFYtEA2QIzqtoV45zObJfZC0pYYbK1r8Kp+aL";
    let config = |audit: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n[audit]\n{audit}\n");
    let one = |url: &str| format!("{{ url = \"{url}\", verifier_key = \"{KEY}\" }}");
    let read = |audit: &str| Config::parse(&config(audit)).unwrap().witnesses;
    assert_eq!(read(""), WitnessSettings::default());
    let witnesses = read(&format!("witnesses = [{}]\nwitness_quorum_at_start = true", one("http://127.0.0.1:8090/")));
    assert_eq!((witnesses.quorum, witnesses.quorum_at_start), (1, true));
    assert_eq!(witnesses.places[0].url.as_str(), "http://127.0.0.1:8090/add-checkpoint");
    assert_eq!(witnesses.places[0].key.to_string(), KEY);
    for url in ["", "witness.example", "ftp://w.example", "https://u@w.example", "https://w.example/?a", "file:///w"] {
        let wanted = "`audit.witnesses[0].url` must be an address such as \"https://witness.example.com/w1\"";
        assert_eq!(mistakes(&config(&format!("witnesses = [{}]", one(url)))), [wanted], "{url}");
    }
    assert_eq!((witnesses.lag_max, witnesses.places[0].role), (None, CosignerRole::Witness));
    assert_eq!(mistakes(&config("cosigner_lag_seconds = 60")), ["`audit.cosigner_lag_seconds` takes `witnesses`"]);
    for seconds in ["0", "86401", "1.5", "\"60\""] {
        let audit = format!("witnesses = [{}]\ncosigner_lag_seconds = {seconds}", one("http://a.example"));
        let wanted = "`audit.cosigner_lag_seconds` must be a whole number of seconds from 1 to 86400";
        assert_eq!(mistakes(&config(&audit)), [wanted], "{seconds}");
    }
    let twice = format!("witnesses = [{}, {}]", one("http://a.example"), one("http://b.example"));
    assert_eq!(mistakes(&config(&twice)), ["`audit.witnesses` has the key of `witness.example/w1` twice"]);
    let log_key = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    let of_a_log = config(&format!("witnesses = [{}]", one("http://a.example"))).replace(KEY, log_key);
    let wanted = "`audit.witnesses[0].verifier_key` must be the line that `bulkhead-witness key` prints";
    assert_eq!(mistakes(&of_a_log), [wanted]);
    assert_eq!(
        mistakes(&config("witness_quorum_at_start = true")),
        ["`audit.witness_quorum_at_start` takes `witnesses`"]
    );
    let beyond = format!("witnesses = [{}]\nwitness_quorum = 2", one("http://a.example"));
    assert_eq!(mistakes(&config(&beyond)), ["`audit.witness_quorum` must be a whole number from 1 to 1"]);
}

#[test]
fn traces_are_kept_for_ever_unless_it_is_said_for_how_long() {
    let config = |audit: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n[audit]\n{audit}\n");
    let read = |audit: &str| Config::parse(&config(audit)).unwrap().retention_days.map(std::num::NonZeroU32::get);
    assert_eq!((read(""), read("retention_days = 1"), read("retention_days = 365000")), (None, Some(1), Some(365_000)));
    for days in ["0", "-1", "365001", "1.5", "\"30\"", "false"] {
        let wanted = "`audit.retention_days` must be a whole number of days from 1 to 365000";
        assert_eq!(mistakes(&config(&format!("retention_days = {days}"))), [wanted], "{days}");
    }
}

#[test]
fn a_second_opinion_takes_an_auditor_and_the_time_that_it_has() {
    const KEY: &str = "witness.example/w1+6de5ed03+BPj5qgqKFYtEA2QIzqtoV45zObJfZC0pYYbK1r8Kp+aL";
    let config = |audit: &str, opinion: &str| {
        format!(
            "data_dir = \"d\"\nmodel = \"m\"\n[[tenants]]\nname = \"acme\"\nkey_hash = \"{HASH}\"\n[audit]\n{audit}\n\
             [scheduler.tenants.acme]\nsecond_opinion = {opinion}\n"
        )
    };
    let place = |more: &str| format!("witnesses = [{{ url = \"http://a.example\", verifier_key = \"{KEY}\"{more} }}]");
    let (auditor, witness) = (place(", auditor = true"), place(", auditor = false"));
    let whole = format!("{auditor}\ncosigner_lag_seconds = 60");
    for (word, wanted) in
        [("observe", SecondOpinion::Observe), ("fence", SecondOpinion::Fence), ("enforce", SecondOpinion::Enforce)]
    {
        let read = Config::parse(&config(&whole, &format!("\"{word}\""))).unwrap();
        assert_eq!(read.agreement(&TenantName::parse("acme").unwrap()).second_opinion, wanted);
        assert_eq!(read.witnesses.lag_max, Some(Duration::from_secs(60)));
        assert_eq!(read.witnesses.places[0].role, CosignerRole::Auditor);
    }
    let without = [auditor, format!("{witness}\ncosigner_lag_seconds = 60"), String::new()];
    for audit in &without {
        assert!(Config::parse(&config(audit, "\"observe\"")).is_ok(), "it waits for nobody");
        for word in ["\"fence\"", "\"enforce\""] {
            let wanted = "`scheduler.tenants.acme.second_opinion` takes `[audit] cosigner_lag_seconds` and, of the \
                          `witnesses`, one with `auditor = true`";
            assert_eq!(mistakes(&config(audit, word)), [wanted], "{audit}");
        }
    }
    for word in ["\"strict\"", "true", "\"\""] {
        let wanted = "`scheduler.tenants.acme.second_opinion` must be \"observe\", \"fence\" or \"enforce\"";
        assert_eq!(mistakes(&config(&whole, word)), [wanted], "{word}");
    }
}

#[test]
fn the_index_is_on_disk_unless_it_is_to_be_in_memory() {
    let config = |audit: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n[audit]\n{audit}\n");
    let read = |audit: &str| Config::parse(&config(audit)).unwrap().index;
    assert_eq!(read(""), IndexKind::Sled);
    assert_eq!(read("index = \"sled\""), IndexKind::Sled);
    assert_eq!(read("index = \"memory\""), IndexKind::Memory);
    for index in ["\"\"", "\"Sled\"", "true", "[]"] {
        let wanted = "`audit.index` must be \"sled\" or \"memory\"";
        assert_eq!(mistakes(&config(&format!("index = {index}"))), [wanted], "{index}");
    }
}

#[test]
fn a_full_configuration_is_read() {
    let text = format!(
        "listen = \"0.0.0.0:0\"\ndata_dir = \"data\"\nmodel = \"m.gguf\"\nweights_cache = \"off\"\nserved_name = \"small\"\nrules = \"r.toml\"\n\
         origin = \"example.org/log\"\nmetrics = \"nobody\"\n\
         [tls]\ncertificate = \"c.pem\"\nprivate_key = \"k.pem\"\nclient_authorities = \"a.pem\"\n\
         [engine]\nthreads = 2\npages = 64\nsequences_max = 4\nqueue_max = 8\nprefill_chunk_tokens = 32\ncontext_tokens_max = 512\nkv = \"f32\"\n\
         step_target_ms = 50\nqueue_wait_max_ms = 9\nprefix_cache = false\nspeculation = false\nswap_mib = 0\n\
         [limits]\nbody_bytes_max = 4096\nconnections_max = 7\ntokenizers_max = 1\nsse_comment_interval_ms = 20\nconstant_shape_period_ms = 250\n\
         head_timeout_ms = 1\nidle_timeout_ms = 2\nbody_timeout_ms = 3\nwrite_timeout_ms = 4\nsend_bytes_per_second_min = 5\n\
         [[tenants]]\nname = \"acme\"\nkey_hash = \"{HASH}\"\n[[tenants]]\nname = \"globex\"\nkey_hash = \"{HASH}\"\n\
         [scheduler.tenants.globex]\nclass = \"interactive\"\nweight = 3\nkv_permille = 300\nqueue_max = 5\nexclusive = true\n\
         stream = \"constant-shape\"\n"
    );
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:0");
    assert_eq!(config.tls.as_ref().unwrap().client_authorities, Some(PathBuf::from("a.pem")));
    assert_eq!(config.served_name.as_ref().unwrap().as_str(), "small");
    assert_eq!((config.engine.pages, config.engine.context_tokens_max), (64, Some(512)));
    assert_eq!(config.engine.kv, KvKind::F32);
    assert_eq!(config.weights_cache, WeightsCache::Off);
    assert_eq!(config.limits.comment_interval, Duration::from_millis(20));
    assert_eq!(config.limits.constant_shape_period, Duration::from_millis(250));
    assert_eq!(config.limits.connection.send_bytes_per_second_min, 5);
    assert_eq!(config.metrics, MetricsReaders::Nobody);
    assert_eq!(config.tenants.len(), 2);
    let EngineConfig { step_target_ms, queue_wait_max_ms, prefix_cache, speculation, swap_mib, .. } = config.engine;
    assert_eq!((step_target_ms, queue_wait_max_ms, prefix_cache, speculation, swap_mib), (50, 9, false, false, 0));
    let terms = TenantTerms {
        class: Class::Interactive,
        weight: 3,
        kv_permille: Some(300),
        queue_max: Some(5),
        exclusive: true,
        speculates: false,
    };
    let globex = Agreement { terms, stream: StreamShape::ConstantShape, ..Agreement::default() };
    assert_eq!(config.agreement(&TenantName::parse("globex").unwrap()), globex);
    assert_eq!(config.agreement(&TenantName::parse("acme").unwrap()), Agreement::default());
}

#[test]
fn which_answers_are_computed_again_is_agreed_with_each_tenant() {
    let hash = "0".repeat(64);
    let with = |terms: &str| {
        format!(
            "data_dir = \"d\"\nmodel = \"m\"\n[[tenants]]\nname = \"acme\"\nkey_hash = \"{hash}\"\n[audit]\n\
             replay_digest = true\n[scheduler.tenants.acme]\n{terms}"
        )
    };
    let terms = |text: &str| Config::parse(&with(text)).unwrap().agreement(&TenantName::parse("acme").unwrap()).replay;
    let of = |per_million, before_release| ReplayTerms { per_million, before_release };
    assert_eq!(terms(""), of(0, false));
    assert_eq!(terms("replay = 0.25"), of(250_000, false));
    assert_eq!(terms("replay = 1"), of(1_000_000, false));
    assert_eq!(terms("replay_before_release = true"), of(1_000_000, true));
    assert_eq!(terms("replay = 1.0\nreplay_before_release = true"), of(1_000_000, true));
    assert!(Config::parse(&with("")).unwrap().replay_digest);
    for wrong in ["replay = 1.5", "replay = -0.1", "replay = nan", "replay = \"all\""] {
        let wanted = "`scheduler.tenants.acme.replay` must be a part of all answers, from 0.0 to 1.0";
        assert_eq!(mistakes(&with(wrong)), [wanted], "{wrong}");
    }
    let found = mistakes(&with("replay = 0.5\nreplay_before_release = true"));
    assert!(found.len() == 1 && found[0].contains("must be 1.0"), "{found:?}");
}

#[test]
fn what_is_not_said_has_a_default() {
    let config = Config::parse("data_dir = \"d\"\nmodel = \"m\"").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.metrics, MetricsReaders::Loopback);
    assert_eq!(config.weights_cache, WeightsCache::User);
    assert!(config.tenants.is_empty());
}

/// A number that the configuration takes and the engine refuses would be found out at the start, after the model is read.
#[test]
fn the_largest_numbers_are_the_engine_s() {
    let largest = EngineConfig::LARGEST;
    for (name, value_max) in [
        ("threads", largest.threads),
        ("pages", largest.pages),
        ("sequences_max", largest.sequences_max),
        ("queue_max", largest.queue_max),
        ("prefill_chunk_tokens", largest.prefill_chunk_tokens),
        ("step_target_ms", largest.step_target_ms),
        ("queue_wait_max_ms", largest.queue_wait_max_ms),
    ] {
        let text = |value: usize| format!("data_dir = \"d\"\nmodel = \"m\"\n[engine]\n{name} = {value}");
        assert!(Config::parse(&text(value_max)).is_ok(), "{name}");
        let wanted = format!("`engine.{name}` must be a whole number from 1 to {value_max}");
        assert_eq!(mistakes(&text(value_max + 1)), [wanted]);
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "listen = 8080\ndata_dir = \"\"\nport = 1\nmetrics = \"all\"\nweights_cache = \"\"\norigin = \"two words\"\n\
                [engine]\nthreads = 0\npage = 1\ncontext_tokens_max = 0\nkv = \"f64\"\n[limits]\nbody_bytes_max = -1\nwrite_timeout_ms = 1.5\n\
                [[tenants]]\nname = \"Acme\"\nkey_hash = \"12\"\nkey = \"bk_\"\n[[tenants]]\n";
    assert_eq!(
        mistakes(text),
        [
            "`data_dir` must be a path",
            "`model` is missing",
            "`listen` must be an address such as \"127.0.0.1:8080\"",
            "`weights_cache` must be a path or \"off\"",
            "`origin` must be a name without spaces and `+`",
            "`metrics` must be \"loopback\", \"everyone\" or \"nobody\"",
            "`engine.threads` must be a whole number from 1 to 256",
            "`engine.context_tokens_max` must be a whole number from 2",
            "`engine.kv` must be \"bf16\", \"f32\" or \"int8\"",
            "`engine.page` is not a setting",
            "`limits.body_bytes_max` must be a whole number from 1024 to 1073741824",
            "`limits.write_timeout_ms` must be a number of milliseconds from 1 to 86400000",
            "`tenants[0].name` must be 1 to 63 of `a-z`, `0-9`, `-`",
            "`tenants[0].key_hash` must be the 64 hexadecimal digits that `bulkhead` prints for a key",
            "`tenants[0].key` is not a setting",
            "`tenants[1].name` is missing",
            "`tenants[1].key_hash` is missing",
            "`port` is not a setting",
        ]
    );
}

fn with_tenants(names: &[&str], rest: &str) -> String {
    let keys: String =
        names.iter().map(|name| format!("[[tenants]]\nname = \"{name}\"\nkey_hash = \"{HASH}\"\n")).collect();
    format!("data_dir = \"d\"\nmodel = \"m\"\n{keys}{rest}")
}

#[test]
fn whoever_has_a_key_has_terms_under_the_number_that_its_labels_carry() {
    let text = with_tenants(
        &["globex", "acme", "globex", "initech"],
        "[scheduler.tenants.acme]\nkv_permille = 400\n[scheduler.tenants.initech]\nweight = 3\nspeculation = false",
    );
    let tenancy = Config::parse(&text).unwrap().tenancy().unwrap();
    let label = |number| Label::of(TenantId::new(number).unwrap());
    // Half of what can be given is acme's by number; globex, of whom nothing is said, counts as one against initech's three.
    assert_eq!([1, 2, 3, 4].map(|number| tenancy.guaranteed_pages(label(number), 1000)), [100, 400, 300, 0]);
    assert_eq!([1, 2, 3].map(|number| tenancy.of(label(number)).weight), [1, 1, 3]);
    assert_eq!([1, 2, 3].map(|number| tenancy.of(label(number)).speculates), [true, true, false]);
}

#[test]
fn two_processes_with_one_file_agree_on_every_tenant_s_terms() {
    let text =
        with_tenants(&["globex", "acme", "initech"], "[scheduler.tenants.initech]\nclass = \"batch\"\nweight = 7");
    let [gateway, worker] = [(); 2].map(|()| Config::parse(&text).unwrap());
    let (here, there) = (gateway.tenancy().unwrap(), worker.tenancy().unwrap());
    for (name, number) in KeyRing::numbers(&gateway.tenants) {
        assert_eq!(KeyRing::numbers(&worker.tenants).get(name), Some(&number));
        assert_eq!(here.of(Label::of(number)), there.of(Label::of(number)), "{name}");
    }
}

#[test]
fn events_go_encrypted_to_addresses_that_are_there_once() {
    let text = |webhooks: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n{webhooks}");
    let one = |url: &str| format!("[[webhooks]]\nurl = \"{url}\"\nsecret_file = \"s\"\n");
    for good in ["https://siem.example.com/hook?token=t", "http://127.0.0.1:9/", "http://[::1]:9/", "http://localhost/"]
    {
        assert_eq!(Config::parse(&text(&one(good))).unwrap().webhooks.len(), 1, "{good}");
    }
    for bad in ["http://siem.example.com/", "ftp://localhost/", "https://", "https://user:word@siem.example.com/", "x"]
    {
        let found = mistakes(&text(&one(bad)));
        assert!(
            found.len() == 1 && found[0].starts_with("`webhooks[0].url` must be an address with https"),
            "{found:?}"
        );
        assert!(!found[0].contains("word@"), "{found:?}");
    }
    let twice = one("https://siem.example.com/").repeat(2);
    assert_eq!(mistakes(&text(&twice)), ["`webhooks[1].url` is there twice"]);
    let many: String = (0..9).map(|number| one(&format!("https://siem.example.com/{number}"))).collect();
    assert_eq!(mistakes(&text(&many)), ["`webhooks` has 9 tables, 8 are possible"]);
    assert_eq!(
        mistakes(&text("[[webhooks]]\nurl = \"https://a.example/\"\n")),
        ["`webhooks[0].secret_file` is missing"]
    );
}

#[test]
fn no_tenant_is_promised_more_places_than_there_are() {
    let text = |places| {
        with_tenants(&["acme"], &format!("[engine]\nqueue_max = 8\n[scheduler.tenants.acme]\nqueue_max = {places}\n"))
    };
    assert!(Config::parse(&text(8)).is_ok());
    let wanted = "`scheduler.tenants.acme.queue_max` is 9, but `engine.queue_max` lets 8 requests of all tenants wait";
    assert_eq!(mistakes(&text(9)), [wanted]);
}

#[test]
fn what_is_agreed_with_nobody_or_contradicts_itself_is_a_mistake() {
    let text = with_tenants(
        &["acme", "globex"],
        "[scheduler]\nclasses = 3\n[scheduler.tenants]\nglobex = 1\n\
         [scheduler.tenants.acme]\nclass = \"urgent\"\nweight = 0\nkv_permille = -1\nqueue_max = 0\nexclusive = 1\n\
         stream = \"constant-shape\"\nspeculation = true\npriority = 9\n\
         [scheduler.tenants.initech]\nweight = 1001\n",
    );
    assert_eq!(
        mistakes(&text),
        [
            "`scheduler.tenants.acme.class` must be \"interactive\", \"standard\" or \"batch\"",
            "`scheduler.tenants.acme.weight` must be a whole number from 1 to 1000",
            "`scheduler.tenants.acme.kv_permille` must be a whole number from 0 to 1000",
            "`scheduler.tenants.acme.queue_max` must be a whole number from 1 to 1048576",
            "`scheduler.tenants.acme.exclusive` must be true or false",
            "`scheduler.tenants.acme.speculation` must not be true with `stream = \"constant-shape\"`: how well guesses \
             fit would show in the time",
            "`scheduler.tenants.acme.priority` is not a setting",
            "`scheduler.tenants.globex` must be a table",
            "`scheduler.tenants.initech.weight` must be a whole number from 1 to 1000",
            "`scheduler.tenants.initech` is of nobody: there is no key of that name under [[tenants]]",
            "`scheduler.classes` is not a setting",
        ]
    );
}

#[test]
fn more_than_there_is_cannot_be_promised() {
    let of = |acme: u32, globex: u32| {
        let rest = format!(
            "[scheduler.tenants.acme]\nkv_permille = {acme}\n[scheduler.tenants.globex]\nkv_permille = {globex}\n"
        );
        with_tenants(&["acme", "globex"], &rest)
    };
    assert!(Config::parse(&of(500, 300)).is_ok());
    let wanted = "`scheduler.tenants` cannot be kept: the tenants' guaranteed parts of the KV pages add up to 801 \
                  thousandths, at most 800 can be given";
    assert_eq!(mistakes(&of(500, 301)), [wanted]);
}

#[test]
fn a_tenant_whose_streams_have_a_constant_shape_does_not_speculate() {
    let speculates = |settings: &str| {
        let config = Config::parse(&with_tenants(&["acme"], &format!("[scheduler.tenants.acme]\n{settings}"))).unwrap();
        config.tenancy().unwrap().of(Label::of(TenantId::new(1).unwrap())).speculates
    };
    assert!(speculates("") && speculates("stream = \"as-it-comes\"") && speculates("speculation = true"));
    assert!(!speculates("stream = \"constant-shape\"") && !speculates("speculation = false"));
}

#[test]
fn tables_of_another_type_are_named() {
    assert_eq!(
        mistakes("data_dir = \"d\"\nmodel = \"m\"\nengine = 1\nlimits = []\ntenants = {}"),
        ["`engine` must be a table", "`limits` must be a table", "`tenants` must be a list of tables"]
    );
    assert_eq!(mistakes("data_dir = \"d\"\nmodel = \"m\"\ntenants = [1]"), ["`tenants[0]` must be a table"]);
    assert!(mistakes("data_dir = ").first().unwrap().contains("TOML parse error"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::read(Path::new("/nonexistent/bulkhead.toml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/bulkhead.toml"), "{error}");
}

#[test]
fn whatever_is_wrong_with_a_file_its_name_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bulkhead.toml");
    for text in ["data_dir = ", "data_dir = \"a\"\ndata_dir = \"b\"\n", "model = 1\n", "\u{0}"] {
        std::fs::write(&file, text).unwrap();
        let error = Config::read(&file).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{text:?}: {error}");
    }
    std::fs::write(&file, b"data_dir = \"\xff\"").unwrap();
    let error = Config::read(&file).unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn paths_count_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bulkhead.toml");
    std::fs::write(&file, "data_dir = \"data\"\nmodel = \"/models/m.gguf\"\nrules = \"r.toml\"\nweights_cache = \"c\"")
        .unwrap();
    let config = Config::read(&file).unwrap();
    assert_eq!(config.data_dir, folder.path().join("data"));
    assert_eq!(config.model, Path::new("/models/m.gguf"));
    assert_eq!(config.rules.unwrap(), folder.path().join("r.toml"));
    assert_eq!(config.weights_cache, WeightsCache::Folder(folder.path().join("c")));
}

#[test]
fn nothing_is_everybodys_unless_it_is_declared() {
    let config = |rest: &str| format!("data_dir = \"d\"\nmodel = \"m\"\n{rest}");
    assert_eq!(Config::parse(&config("")).unwrap().public_prefixes, []);
    assert_eq!(Config::parse(&config("public_prefixes = []")).unwrap().public_prefixes, []);
    let two = "[[public_prefixes]]\nsystem = \"You are kind.\"\n[[public_prefixes]]\ntext = \"Once\"";
    let read = Config::parse(&config(two)).unwrap();
    let wanted = [PublicPrefix::System("You are kind.".to_owned()), PublicPrefix::Text("Once".to_owned())];
    assert_eq!(read.public_prefixes, wanted);
    let printed = format!("{read:?}");
    assert!(printed.contains("System(13 bytes)") && !printed.contains("kind"), "{printed}");
}

#[test]
fn prefixes_that_cannot_be_declared_are_mistakes() {
    let text = format!(
        "data_dir = \"d\"\nmodel = \"m\"\n[engine]\nprefix_cache = false\n\
         [[public_prefixes]]\n[[public_prefixes]]\nsystem = \"a\"\ntext = \"b\"\n[[public_prefixes]]\nsystem = \"\"\n\
         [[public_prefixes]]\ntext = \"{}\"\n[[public_prefixes]]\ntext = \"c\"\nfile = \"d\"",
        "x".repeat((64 << 10) + 1)
    );
    let wanted = [
        "`public_prefixes` cannot be kept: that takes `engine.prefix_cache`, and no [worker]",
        "`public_prefixes[0]` must have one of `system` and `text`",
        "`public_prefixes[1]` must have one of `system` and `text`",
        "`public_prefixes[2].system` must be a text of 1 to 65536 bytes",
        "`public_prefixes[3].text` must be a text of 1 to 65536 bytes",
        "`public_prefixes[4].file` is not a setting",
    ];
    assert_eq!(mistakes(&text), wanted);
    let with_worker = "data_dir = \"d\"\nmodel = \"m\"\n[worker]\nrole = \"decode\"\naddress = \"unix:/w\"\n\
                       certificates = \"c\"\n[[public_prefixes]]\ntext = \"c\"";
    assert_eq!(mistakes(with_worker), wanted[..1]);
    let many = "[[public_prefixes]]\ntext = \"a\"\n".repeat(17);
    assert_eq!(
        mistakes(&format!("data_dir = \"d\"\nmodel = \"m\"\n{many}")),
        ["`public_prefixes` has 17 tables, 16 are possible"]
    );
    assert_eq!(
        mistakes("data_dir = \"d\"\nmodel = \"m\"\npublic_prefixes = 1"),
        ["`public_prefixes` must be a list of tables"]
    );
}

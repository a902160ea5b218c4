//! A log whose key is in a security module: SoftHSM, as Debian packages it.
#![cfg(feature = "pkcs11")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_log::{AuditConfig, AuditLog, OpenLogError, SignerPlace};
use audit_tlog::{Checkpoint, VerifierKey};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::Attribute;
use cryptoki::session::UserType;
use cryptoki::types::AuthPin;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const ORIGIN: &str = "signer.example/log";
const SIGNER: &str = env!("CARGO_BIN_EXE_bulkhead-signer");
const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const PIN: &str = "1234";
/// DER of the object identifier of Ed25519, 1.3.101.112.
const ED25519: [u8; 5] = [0x06, 0x03, 0x2b, 0x65, 0x70];

/// A token in this folder, with a key pair. This process is told of the folder by its environment, as the module wants it.
fn token(folder: &Path) {
    std::fs::create_dir(folder.join("tokens")).unwrap();
    let settings = format!("directories.tokendir = {}\nlog.level = ERROR\n", folder.join("tokens").display());
    std::fs::write(folder.join("softhsm2.conf"), settings).unwrap();
    let library = Pkcs11::new(MODULE).expect("`libsofthsm2.so` is missing: apt-get install softhsm2");
    library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).unwrap();
    let slot = library.get_slots_with_token().unwrap()[0];
    let pin = AuthPin::new(PIN.into());
    library.init_token(slot, &pin, "bulkhead").unwrap();
    let session = library.open_rw_session(slot).unwrap();
    session.login(UserType::So, Some(&pin)).unwrap();
    session.init_pin(&pin).unwrap();
    session.logout().unwrap();
    session.login(UserType::User, Some(&pin)).unwrap();
    let label = Attribute::Label(b"log".to_vec());
    let public =
        [Attribute::Token(true), Attribute::Verify(true), Attribute::EcParams(ED25519.to_vec()), label.clone()];
    let private =
        [Attribute::Token(true), Attribute::Sign(true), Attribute::Private(true), Attribute::Sensitive(true), label];
    session.generate_key_pair(&Mechanism::EccEdwardsKeyPairGen, &public, &private).unwrap();
}

fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn open(dir: &Path, command: &[String]) -> Result<AuditLog, OpenLogError> {
    let mut config = AuditConfig::new(dir, ORIGIN);
    config.signer = SignerPlace::Command(command.to_vec());
    config.heartbeat = None;
    AuditLog::open(config)
}

/// One test: the module reads its settings once, from the environment of the process.
#[test]
fn a_log_s_key_may_be_in_a_security_module() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("softhsm2.conf");
    if std::env::var_os("SOFTHSM2_CONF").is_none() {
        // Again with the environment that the module wants, so that no other test sees it.
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_log_s_key_may_be_in_a_security_module", "--nocapture"])
            .env("SOFTHSM2_CONF", &settings)
            .env("SIGNER_TEST_FOLDER", folder.path())
            .status();
        assert!(status.unwrap().success(), "see what it says above");
        return;
    }
    let folder = std::path::PathBuf::from(std::env::var_os("SIGNER_TEST_FOLDER").unwrap());
    token(&folder);
    let (pin, wrong) = (folder.join("pin"), folder.join("wrong"));
    secret(&pin, PIN);
    secret(&wrong, "9999");
    let words = |token: &str, label: &str, pin: &Path| -> Vec<String> {
        let pin = pin.to_str().unwrap();
        [SIGNER, "pkcs11", "--module", MODULE, "--token", token, "--label", label, "--pin-file", pin]
            .map(str::to_owned)
            .to_vec()
    };
    let command = words("bulkhead", "log", &pin);
    let shown = Command::new(SIGNER).args(&command[1..]).args(["--show", ORIGIN]).output().unwrap();
    let key = String::from_utf8(shown.stdout).unwrap().trim_end().to_owned();
    let dir = folder.join("log");
    for _ in 0..2 {
        let log = open(&dir, &command).unwrap();
        assert_eq!(log.verifier_key(), key);
        log.shutdown();
        let checkpoint = std::fs::read(dir.join("checkpoint")).unwrap();
        assert!(Checkpoint::open(&checkpoint, &VerifierKey::parse(&key).unwrap()).unwrap().size > 0);
    }
    assert!(!dir.join("keys/log.skey").exists());
    for refused in [words("other", "log", &pin), words("bulkhead", "other", &pin), words("bulkhead", "log", &wrong)] {
        assert!(matches!(open(&dir, &refused), Err(OpenLogError::Signer { .. })), "{refused:?}");
    }
}

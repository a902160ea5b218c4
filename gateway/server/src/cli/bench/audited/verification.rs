//! What checking costs, on one core.

use super::super::spread::{Series, Spread};
use super::durable::{OF_A_REQUEST, write_requests};
use super::{BODY, Logs, open_entry, outcome};
use anyhow::{Result, ensure};
use audit_log::{AuditLog, ReceiptError};
use audit_tlog::{Checkpoint, Hash, TlogProof, VerifierKey, check_inclusion};
use audit_verify::{Evidence, check_log, check_receipt};
use policies_domain::{Principal, RequestId};
use serde_json::{Value as Json, json};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entries of the log.
const ENTRIES: usize = 200_000;
/// Those that write it.
const WRITERS: usize = 1_024;
/// Checks that one timing is the mean of.
const PROOFS: u32 = 20_000;
const RECEIPTS: u32 = 2_000;
/// Until an entry is published.
const PUBLISHED_MAX: Duration = Duration::from_secs(60);
const PUBLISHED_LOOK: Duration = Duration::from_millis(50);

pub(super) async fn measure(logs: &Logs) -> Result<Json> {
    let (folder, log) = logs.open()?;
    write(logs, &log).await?;
    // Neither at the beginning of the tree nor at its end, where proofs are short.
    let permit = logs.callers.permit(0)?;
    let leaf = open_entry(&log, &permit).await?.seal(outcome(16, 1)).await?.leaf_hash;
    write(logs, &log).await?;
    let receipt = receipt(&log, permit.principal(), permit.request()).await?;
    let key = VerifierKey::parse(log.verifier_key().trim_end())?;
    log.shutdown();

    let (mut whole, mut proof, mut one) = (Series::new(), Series::new(), Series::new());
    let mut entries = 0;
    for repetition in 0..=logs.repetitions {
        let begun = Instant::now();
        let report = check_log(&folder.path().join("log"), &key, None, |_, _| ())?;
        let checked = report.checkpoint.size as f64 / begun.elapsed().as_secs_f64();
        entries = report.checkpoint.size;
        let (of_proof, of_receipt) = (inclusion_us(&receipt, &key, Hash(leaf.0))?, receipt_us(&receipt, &key)?);
        if repetition > 0 {
            whole.push(checked);
            proof.push(of_proof);
            one.push(of_receipt);
        }
    }
    Ok(json!({
        "entries": entries,
        "entries_per_second": Spread::of(&whole)?,
        "inclusion_proof_us": Spread::of(&proof)?,
        "receipt_us": Spread::of(&one)?,
        "receipt_bytes": receipt.len(),
        "receipt_cose_bytes": log.cose_receipt(permit.principal(), permit.request())?.len(),
    }))
}

/// Half of the log.
async fn write(logs: &Logs, log: &AuditLog) -> Result<()> {
    let requests = ENTRIES / 2 / OF_A_REQUEST / WRITERS;
    let writing: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (log, callers) = (log.clone(), Arc::clone(&logs.callers));
            tokio::spawn(async move { write_requests(&log, &callers, writer, requests).await })
        })
        .collect();
    for written in writing {
        written.await??;
    }
    Ok(())
}

/// A receipt as soon as there is one.
pub(super) async fn receipt(log: &AuditLog, principal: &Principal, request: RequestId) -> Result<String> {
    let begun = Instant::now();
    loop {
        match log.receipt(principal, request) {
            Ok(receipt) => return Ok(receipt),
            Err(ReceiptError::NotYet { .. }) => tokio::time::sleep(PUBLISHED_LOOK).await,
            Err(error) => return Err(error.into()),
        }
        ensure!(begun.elapsed() < PUBLISHED_MAX, "no receipt was published");
    }
}

/// The proof alone, without the checkpoint's signature.
fn inclusion_us(receipt: &str, key: &VerifierKey, leaf: Hash) -> Result<f64> {
    let proof = TlogProof::parse(receipt.as_bytes())?;
    let Checkpoint { size, root, .. } = Checkpoint::open(proof.checkpoint.as_bytes(), key)?;
    let begun = Instant::now();
    for _ in 0..PROOFS {
        let hashes: &[Hash] = black_box(&proof.hashes);
        check_inclusion(hashes, size, root, proof.index, black_box(leaf))?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(PROOFS))
}

/// All that `verify receipt` checks, with the request at hand.
fn receipt_us(receipt: &str, key: &VerifierKey) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..RECEIPTS {
        let evidence = Evidence { request: Some(BODY), response: None, witnesses: None };
        black_box(check_receipt(black_box(receipt.as_bytes()), key, evidence)?);
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(RECEIPTS))
}

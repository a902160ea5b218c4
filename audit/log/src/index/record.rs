//! The records of an index. Keys begin with a byte that says what they are; numbers are big-endian.
//!
//! | key | value |
//! |---|---|
//! | 0, block | schema, entries indexed, root hash of the log at that size, digest of the origin |
//! | 1, request | its opened entry |
//! | 2, request | its sealed entry, and where its trace lies |
//! | 3, tenant, number | the tenant's entry with that number |
//! | 4, entry | an incident |
//! | 5, bucket, block, page, part | (generation, entry in the block) of its readers: see `pages.rs` |

use super::BLOCK;
use crate::segment::TracePlace;
use audit_provenance::{Body, Entry, TenantRef};
use audit_tlog::Hash;
use policies_domain::RequestId;
use sha2::{Digest as _, Sha256};

/// Changes with the form of the records: an index of another one is made anew.
const SCHEMA: u8 = 1;

/// Which entry of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Opened = 1,
    Sealed = 2,
}

impl Kind {
    /// Which entry of which request this is, if it is one.
    pub(crate) fn of(entry: &Entry) -> Option<(Self, RequestId)> {
        match &entry.body {
            Body::Opened(_) if entry.head.tenant.is_some() => {
                Some((Self::Opened, RequestId::from_bytes(entry.head.uuid)))
            }
            Body::Sealed(sealed) if entry.head.tenant.is_some() => Some((Self::Sealed, sealed.request)),
            _ => None,
        }
    }
}

pub(crate) fn key(prefix: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![prefix];
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

pub(crate) fn number_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

pub(crate) fn request_key(kind: Kind, request: RequestId) -> Vec<u8> {
    key(kind as u8, &[&request.bytes()])
}

pub(crate) fn tenant_key(tenant: TenantRef, number: u64) -> Vec<u8> {
    key(3, &[&tenant, &number.to_be_bytes()])
}

pub(crate) fn incident_key(index: u64) -> Vec<u8> {
    key(4, &[&index.to_be_bytes()])
}

pub(crate) fn mark_key(block: u64) -> Vec<u8> {
    key(0, &[&block.to_be_bytes()])
}

/// What the store says of itself, once for every block: the first record, and then again as it grows.
pub(crate) fn mark_value(origin: &str, block: u64, root: Hash) -> Vec<u8> {
    let size = (block + 1) * BLOCK;
    key(SCHEMA, &[&size.to_be_bytes(), &root.0, &Sha256::digest(origin)])
}

/// The entry's index, and with a sealed one where its trace lies.
pub(crate) fn place_value(index: u64, trace: Option<TracePlace>) -> Vec<u8> {
    let mut value = index.to_be_bytes().to_vec();
    if let Some(trace) = trace {
        value.extend_from_slice(&trace.segment.to_be_bytes());
        value.extend_from_slice(&trace.offset.to_be_bytes());
    }
    value
}

pub(crate) fn decode_place(value: &[u8]) -> Option<(u64, Option<TracePlace>)> {
    let index = number_at(value, 0)?;
    match value.len() {
        8 => Some((index, None)),
        24 => Some((index, Some(TracePlace { segment: number_at(value, 8)?, offset: number_at(value, 16)? }))),
        _ => None,
    }
}

/// The records of one entry, pages aside.
pub(crate) fn records_of(index: u64, entry: &Entry, trace: Option<TracePlace>, records: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    if let Some((kind, request)) = Kind::of(entry) {
        records.push((request_key(kind, request), place_value(index, trace)));
    }
    if let Some(link) = entry.head.tenant {
        records.push((tenant_key(link.tenant, link.number), place_value(index, None)));
    }
    if matches!(entry.body, Body::Incident(_)) {
        records.push((incident_key(index), place_value(index, None)));
    }
}

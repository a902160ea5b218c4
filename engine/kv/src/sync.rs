//! The locks of the pool, in one place: its test under a model checker of threads has others here.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

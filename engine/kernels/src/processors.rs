//! Which processors this process may use, and tying threads to them.

/// The processors that the calling thread may use, by the system's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processors(Vec<usize>);

impl Processors {
    /// Empty where the system does not say.
    #[cfg(target_os = "linux")]
    pub(crate) fn allowed() -> Self {
        // SAFETY: all zeros is the empty set; the call writes at most the set's size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
                return Self(Vec::new());
            }
            set
        };
        let count = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        // SAFETY: every number is below the set's size.
        Self((0..count).filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) }).collect())
    }

    /// Empty where the system does not say.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn allowed() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Ties the calling thread to one of them. Where the system refuses, the thread stays free.
    pub(crate) fn tie(&self, index: usize) {
        #[cfg(target_os = "linux")]
        if let Some(processor) = self.0.get(index) {
            // SAFETY: the number is one that the system gave, below the set's size; the call only reads the set.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(*processor, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = index;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_tied_to_the_processor_asked_for_and_no_other_thread_is() {
        let all = Processors::allowed();
        assert!(all.count() >= 1);
        for index in 0..all.count() {
            let processors = all.clone();
            let tied = std::thread::spawn(move || {
                processors.tie(index);
                Processors::allowed()
            });
            assert_eq!(tied.join().unwrap(), Processors(vec![all.0[index]]));
        }
        all.tie(all.count());
        assert_eq!(Processors::allowed(), all, "there is no such processor, and nothing happened");
    }
}

//! Large anonymous memory: zeroed, page by page when first touched, on huge pages where the system has them.

use std::ptr::NonNull;

/// Alignment of every allocation, and the size of a huge page on x86-64 and on most 64-bit ARM.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A block of zeroed memory that costs nothing until it is touched.
///
/// Not a `Vec`: an aligned zeroed allocation may write its zeros at once, and only a mapping can ask for huge pages,
/// which read 1.4 to 1.9 times faster.
pub(crate) struct AnonymousMemory {
    start: NonNull<u8>,
    length: usize,
    /// What was really mapped, for `munmap`.
    #[cfg(unix)]
    mapped: (NonNull<u8>, usize),
}

// SAFETY: the memory belongs to this value alone and is plain bytes.
unsafe impl Send for AnonymousMemory {}
// SAFETY: a shared reference gives shared slices only.
unsafe impl Sync for AnonymousMemory {}

impl AnonymousMemory {
    /// `length` zeroed bytes, aligned to 2 MiB; `None` when the system refuses or the size overflows.
    #[cfg(unix)]
    pub(crate) fn new(length: usize) -> Option<Self> {
        // One huge page more than needed, so that an aligned start exists.
        let mapped_bytes = length.checked_next_multiple_of(HUGE_PAGE_BYTES)?.checked_add(HUGE_PAGE_BYTES)?;
        if isize::try_from(mapped_bytes).is_err() {
            return None;
        }
        // SAFETY: a fresh private mapping at an address of the system's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return None;
        }
        let first = NonNull::new(address.cast::<u8>())?;
        let padding = first.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `padding` is under 2 MiB and the mapping is at least 2 MiB longer than `length`.
        let start = unsafe { first.add(padding) };
        #[cfg(target_os = "linux")]
        // SAFETY: advice on our own mapping; a refusal changes nothing but speed.
        unsafe {
            libc::madvise(
                start.as_ptr().cast(),
                length.next_multiple_of(HUGE_PAGE_BYTES).min(mapped_bytes - padding),
                libc::MADV_HUGEPAGE,
            );
        }
        Some(Self { start, length, mapped: (first, mapped_bytes) })
    }

    /// `length` zeroed bytes, aligned to 2 MiB; `None` when the system refuses or the size overflows.
    #[cfg(not(unix))]
    pub(crate) fn new(length: usize) -> Option<Self> {
        let layout = std::alloc::Layout::from_size_align(length.max(1), HUGE_PAGE_BYTES).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, length })
    }

    /// Gives a range back to the system; whoever touches it next finds zeros. What is in it must be zeros already: where
    /// the system does not take it back, it stays as it is.
    ///
    /// # Panics
    /// When the range is not inside the memory.
    pub(crate) fn give_back(&mut self, range: std::ops::Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.length, "outside of the memory");
        #[cfg(target_os = "linux")]
        // SAFETY: a part of our own mapping, to which `&mut self` is the only reference; private anonymous memory reads
        // as zeros afterwards, so it stays initialised. Advice for a part of a page is refused and changes nothing.
        unsafe {
            let start = self.start.as_ptr().add(range.start);
            libc::madvise(start.cast(), range.end - range.start, libc::MADV_DONTNEED);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` begins `length` mapped, initialised (zeroed) bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for AnonymousMemory {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: exactly the mapping that `new` made; nobody can hold a slice of it any more.
        unsafe {
            libc::munmap(self.mapped.0.as_ptr().cast(), self.mapped.1);
        }
        #[cfg(not(unix))]
        if let Ok(layout) = std::alloc::Layout::from_size_align(self.length.max(1), HUGE_PAGE_BYTES) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for AnonymousMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnonymousMemory({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable_to_its_last_byte() {
        let mut memory = AnonymousMemory::new(3 * HUGE_PAGE_BYTES + 5).unwrap();
        assert_eq!(memory.bytes().len(), 3 * HUGE_PAGE_BYTES + 5);
        assert_eq!(memory.bytes().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        *memory.bytes_mut().last_mut().unwrap() = 7;
        assert_eq!(memory.bytes().last(), Some(&7));
    }

    #[test]
    fn what_was_given_back_reads_as_zeros_and_its_neighbours_are_untouched() {
        let mut memory = AnonymousMemory::new(64 << 10).unwrap();
        memory.bytes_mut()[4096..12_288].fill(0);
        memory.bytes_mut()[4095] = 1;
        memory.bytes_mut()[12_288] = 2;
        memory.give_back(4096..12_288);
        assert!(memory.bytes()[4096..12_288].iter().all(|byte| *byte == 0));
        assert_eq!((memory.bytes()[4095], memory.bytes()[12_288]), (1, 2));
        memory.bytes_mut()[5000] = 3;
        assert_eq!(memory.bytes()[5000], 3);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(AnonymousMemory::new(usize::MAX).is_none());
        assert!(AnonymousMemory::new(isize::MAX as usize).is_none());
    }
}

//! The allocator: large pages for large blocks, and a message with exit code 1 instead of
//! an abort if memory runs out.

use std::alloc::{GlobalAlloc, Layout, System};

/// From this size on a block asks for large pages. Products that read a whole matrix once
/// are up to 1.2 times as fast with them, since address translations stay cached.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// The system's allocator, which never returns null: a request that the system
/// refuses ends the process with a message.
pub struct ExitOnFailure;

// SAFETY: every call goes to `System` with the arguments it came with, and what
// `System` returns is returned unless it is null, in which case nothing returns.
unsafe impl GlobalAlloc for ExitOnFailure {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `GlobalAlloc`'s promises.
        checked(advised(unsafe { System.alloc(layout) }, layout.size()), layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(advised(unsafe { System.alloc_zeroed(layout) }, layout.size()), layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Asks for large pages where a new block is large, before it is first used.
#[cfg(target_os = "linux")]
fn advised(found: *mut u8, size: usize) -> *mut u8 {
    const PAGE: usize = 4096;
    if size >= LARGE && !found.is_null() {
        let before = found.addr() % PAGE;
        // SAFETY: an advice changes no content, whatever the pages; a failure is harmless.
        unsafe {
            let page = found.wrapping_sub(before).cast();
            libc::madvise(page, before + size, libc::MADV_HUGEPAGE);
        }
    }
    found
}

#[cfg(not(target_os = "linux"))]
fn advised(found: *mut u8, _: usize) -> *mut u8 {
    found
}

fn checked(found: *mut u8, size: usize) -> *mut u8 {
    if found.is_null() { fail(size) } else { found }
}

/// Says that `size` bytes could not be had, without asking for memory, and ends
/// the process.
#[cold]
fn fail(size: usize) -> ! {
    use std::io::Write;
    let mut text = [0u8; 512];
    let mut rest = &mut text[..];
    // Formatting a number into a slice allocates nothing; what does not fit is left out.
    let _ = writeln!(
        rest,
        "error: out of memory: an allocation of {} MB failed; close other programs, raise the limit (ulimit -v), or give less work: fewer --samples, a shorter --seq-len, `prune --max-memory`",
        size.div_ceil(1_000_000)
    );
    let left = rest.len();
    end(&text[..text.len() - left])
}

/// Writes a message to stderr and leaves at once: exit handlers and locks may
/// need memory too.
#[cfg(unix)]
fn end(message: &[u8]) -> ! {
    // SAFETY: the pointer and the length are those of a live slice; `_exit`
    // takes any code and never returns.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        libc::_exit(1)
    }
}

#[cfg(not(unix))]
fn end(message: &[u8]) -> ! {
    use std::io::Write;
    let _ = std::io::stderr().write_all(message);
    std::process::exit(1)
}

//! What a dead worker's last words say of why it died: a table of the texts that ggml, drivers and allocators write.

use crate::named::named_enum;

named_enum! {
    /// Why a worker died, as far as it is known.
    pub enum Cause as "cause" {
        /// An assertion of ggml's did not hold, or it gave up.
        Abort = "ggml aborted",
        /// Memory of the host or of the device was short.
        OutOfMemory = "out of memory",
        /// The driver gave the device up, or a fault on it left its context of no use.
        DeviceLost = "device lost",
        /// Something else ended it.
        Killed = "killed from outside",
        /// An exception that nothing caught.
        Exception = "uncaught exception",
        /// None of these: a signal or an exit code is all there is.
        Unknown = "unknown",
    }
}

/// Texts and what they mean, the telling ones first: ggml writes `CUDA error` and a file name whatever the error was, and
/// `terminate called` goes before the exception's own text.
const TEXTS: &[(Cause, &str)] = &[
    // Vulkan, as vulkan.hpp and as the loader name its errors.
    (Cause::OutOfMemory, "ErrorOutOfDeviceMemory"),
    (Cause::OutOfMemory, "ErrorOutOfHostMemory"),
    (Cause::OutOfMemory, "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    (Cause::OutOfMemory, "VK_ERROR_OUT_OF_HOST_MEMORY"),
    (Cause::DeviceLost, "ErrorDeviceLost"),
    (Cause::DeviceLost, "vk::DeviceLostError"),
    (Cause::DeviceLost, "VK_ERROR_DEVICE_LOST"),
    (Cause::DeviceLost, "ggml_vulkan: device lost"),
    // CUDA and HIP, by the texts of cudaGetErrorString; after each of the second group the context is of no use.
    (Cause::OutOfMemory, "cudaMalloc failed: out of memory"),
    (Cause::OutOfMemory, "CUDA error: out of memory"),
    (Cause::OutOfMemory, "ROCm error: out of memory"),
    (Cause::DeviceLost, "error: an illegal memory access was encountered"),
    (Cause::DeviceLost, "error: an illegal instruction was encountered"),
    (Cause::DeviceLost, "error: misaligned address"),
    (Cause::DeviceLost, "error: unspecified launch failure"),
    (Cause::DeviceLost, "error: the launch timed out and was terminated"),
    (Cause::DeviceLost, "error: uncorrectable ECC error encountered"),
    (Cause::DeviceLost, "error: device-side assert triggered"),
    // Metal.
    (Cause::OutOfMemory, "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    (Cause::DeviceLost, "kIOGPUCommandBufferCallbackErrorPageFault"),
    // The host: ggml, C++, Rust, LLVM inside of software drivers, the C library.
    (Cause::OutOfMemory, "insufficient memory (attempted to allocate"),
    (Cause::OutOfMemory, "std::bad_alloc"),
    (Cause::OutOfMemory, "memory allocation of "),
    (Cause::OutOfMemory, "LLVM ERROR: out of memory"),
    (Cause::OutOfMemory, "Cannot allocate memory"),
    (Cause::Abort, "GGML_ASSERT("),
    (Cause::Exception, "terminate called after throwing an instance of"),
];

/// The cause that `lines` of standard error name, and the line that does.
pub(super) fn cause(lines: &[&str]) -> Option<(Cause, String)> {
    let by_text = TEXTS.iter().find_map(|(cause, text)| {
        let line = lines.iter().find(|line| line.contains(text))?;
        Some((*cause, line.trim().to_owned()))
    });
    by_text.filter(|(cause, _)| *cause != Cause::Exception).or_else(|| {
        let aborted = lines.iter().find(|line| is_abort(line));
        aborted.map(|line| (Cause::Abort, line.trim().to_owned())).or_else(|| exception(lines))
    })
}

/// The exception's type and what it says, which stands on the line after.
fn exception(lines: &[&str]) -> Option<(Cause, String)> {
    let at = lines.iter().position(|line| line.contains("terminate called after throwing"))?;
    let what = lines.get(at + 1).filter(|line| line.contains("what():")).map(|line| line.trim());
    let text = [Some(lines[at].trim()), what].into_iter().flatten().collect::<Vec<_>>().join(" ");
    Some((Cause::Exception, text))
}

/// Whether a line is what `ggml_abort` writes: `FILE:LINE: message`, where the file is one of ggml's languages.
fn is_abort(line: &str) -> bool {
    const EXTENSIONS: [&str; 7] = [".c:", ".cpp:", ".cu:", ".cuh:", ".h:", ".hpp:", ".m:"];
    EXTENSIONS.iter().any(|extension| {
        line.split_once(extension).is_some_and(|(_, rest)| {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            digits > 0 && rest[digits..].starts_with(": ")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<(Cause, String)> {
        cause(&text.lines().collect::<Vec<_>>())
    }

    /// What was really written, in public reports and here.
    #[test]
    fn real_last_words() {
        for (wanted, line, text) in [
            // ggml-org/llama.cpp#27849
            (
                Cause::DeviceLost,
                1,
                "terminate called after throwing an instance of 'vk::DeviceLostError'\n  what():  vk::Queue::submit: ErrorDeviceLost",
            ),
            // ggml-org/llama.cpp#27076
            (Cause::DeviceLost, 0, "ggml_vulkan: device lost on Vulkan0"),
            // ggml-org/llama.cpp#15256
            (
                Cause::OutOfMemory,
                1,
                "ggml_vulkan: Device memory allocation of size 118497280 failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\ndouble free or corruption (out)",
            ),
            // ggml-org/llama.cpp#8492
            (
                Cause::OutOfMemory,
                0,
                "MESA: error: ../src/intel/vulkan/anv_device.c:4237: VK_ERROR_OUT_OF_DEVICE_MEMORY",
            ),
            // ggml-org/llama.cpp#16953
            (
                Cause::DeviceLost,
                1,
                "/root/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:88: CUDA error\nCUDA error: an illegal memory access was encountered\n  current device: 1, in function ggml_backend_cuda_synchronize at /root/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:2780",
            ),
            (
                Cause::OutOfMemory,
                0,
                "CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:392\n  cuMemCreate(&handle, reserve_size, &prop, 0)\nggml-cuda.cu:88: CUDA error",
            ),
            (
                Cause::OutOfMemory,
                0,
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory",
            ),
            (Cause::Abort, 0, "/src/ggml/src/ggml.c:3123: GGML_ASSERT(a->ne[2] == b->ne[0]) failed"),
            (
                Cause::Abort,
                0,
                "/src/ggml/src/ggml-backend.cpp:898: pre-allocated tensor (cache) in a buffer (Vulkan0) that cannot run the operation (CPY)",
            ),
            (Cause::Abort, 1, "CUDA error: invalid argument\nggml-cuda.cu:88: CUDA error"),
            (Cause::OutOfMemory, 0, "memory allocation of 1073741824 bytes failed"),
            (
                Cause::OutOfMemory,
                0,
                "ggml_aligned_malloc: insufficient memory (attempted to allocate 4096.00 MB)",
            ),
            (
                Cause::OutOfMemory,
                0,
                "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
            ),
        ] {
            let found = of(text).unwrap_or_else(|| panic!("{text}"));
            let line = text.lines().nth(line).expect("a line").trim();
            assert_eq!((found.0, found.1.as_str()), (wanted, line), "{text}");
        }
    }

    #[test]
    fn an_exception_is_told_with_what_it_says() {
        let text =
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no pipeline";
        let (cause, line) = of(text).unwrap();
        assert_eq!(cause, Cause::Exception);
        assert!(line.ends_with("'std::runtime_error' what():  no pipeline"), "{line}");
    }

    #[test]
    fn words_that_say_nothing_of_the_cause_give_none() {
        for text in [
            "",
            "ggml_vulkan: Found 1 Vulkan devices:",
            "free(): invalid pointer",
            "corrupted size vs. prev_size",
            "ggml_vulkan: 0 = llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe) | uma: 0 | fp16: 1",
            "see ggml.c: no line",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}

//! The table of raw functions, filled at load: required ones, and optional ones that only some builds have.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::RawTensor;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name { _private: [u8; 0] }
    )*};
}

opaque! {
    /// `ggml_context`.
    RawContext,
    /// `ggml_cgraph`.
    RawGraph,
    /// `ggml_backend_buffer_type`.
    RawBufferType,
    /// `ggml_backend_buffer`.
    RawBuffer,
    /// `ggml_backend`.
    RawBackend,
    /// `ggml_backend_device`.
    RawDevice,
    /// `ggml_backend_reg`.
    RawReg,
    /// `ggml_backend_sched`.
    RawSched,
}

/// `ggml_init_params`, passed by value.
#[repr(C)]
pub(crate) struct InitParams {
    pub(crate) mem_size: usize,
    pub(crate) mem_buffer: *mut c_void,
    pub(crate) no_alloc: bool,
}

/// `ggml_backend_feature`.
#[repr(C)]
pub(crate) struct RawFeature {
    pub(crate) name: *const c_char,
    pub(crate) value: *const c_char,
}

pub(crate) type LogCallback = unsafe extern "C" fn(level: c_int, text: *const c_char, user: *mut c_void);
/// `ggml_backend_sched_eval_callback`.
pub(crate) type EvalCallback =
    unsafe extern "C" fn(node: *mut RawTensor, ask: bool, user: *mut c_void) -> bool;
pub(crate) type SetThreads = unsafe extern "C" fn(*mut RawBackend, c_int);
pub(crate) type GetExtraBufts = unsafe extern "C" fn(*mut RawDevice) -> *mut *mut RawBufferType;
pub(crate) type GetFeatures = unsafe extern "C" fn(*mut RawReg) -> *const RawFeature;

macro_rules! api {
    (
        required { $(fn $req:ident($($req_arg:ty),* $(,)?) $(-> $req_ret:ty)?;)* }
        optional { $(fn $opt:ident($($opt_arg:ty),* $(,)?) $(-> $opt_ret:ty)?;)* }
    ) => {
        /// ggml's functions. Names, arguments and results are those of ggml's public headers.
        pub(crate) struct Api {
            $(pub(crate) $req: unsafe extern "C" fn($($req_arg),*) $(-> $req_ret)?,)*
            $(pub(crate) $opt: Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,)*
        }

        impl Api {
            /// Fills the table.
            ///
            /// # Errors
            /// The name of the first required function that `find` does not know.
            ///
            /// # Safety
            /// `find` returns addresses of ggml's functions of exactly the asked names, which stay mapped
            /// for the life of the process.
            pub(crate) unsafe fn fill(find: impl Fn(&'static str) -> Option<*const c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($req: {
                        let address = find(stringify!($req)).ok_or(stringify!($req))?;
                        // SAFETY: the address is that of the function of this name, whose C signature this is.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($req_arg),*) $(-> $req_ret)?>(address) }
                    },)*
                    $($opt: find(stringify!($opt)).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>(address) }
                    }),)*
                })
            }

            /// The optional functions by name, and whether this build has them.
            pub(crate) fn optional(&self) -> Vec<(&'static str, bool)> {
                vec![$((stringify!($opt), self.$opt.is_some())),*]
            }
        }
    };
}

type T = *mut RawTensor;
type C = *mut RawContext;

api! {
    required {
        fn ggml_init(InitParams) -> C;
        fn ggml_free(C);
        fn ggml_tensor_overhead() -> usize;
        fn ggml_graph_overhead_custom(usize, bool) -> usize;
        fn ggml_nbytes(*const RawTensor) -> usize;
        fn ggml_type_name(c_int) -> *const c_char;
        fn ggml_row_size(c_int, i64) -> usize;
        fn ggml_op_desc(*const RawTensor) -> *const c_char;
        fn ggml_set_name(T, *const c_char) -> T;
        fn ggml_set_input(T);
        fn ggml_set_output(T);
        fn ggml_log_set(Option<LogCallback>, *mut c_void);
        fn ggml_quantize_chunk(c_int, *const f32, *mut c_void, i64, i64, i64, *const f32) -> usize;

        fn ggml_new_tensor(C, c_int, c_int, *const i64) -> T;
        fn ggml_add(C, T, T) -> T;
        fn ggml_mul(C, T, T) -> T;
        fn ggml_scale(C, T, f32) -> T;
        fn ggml_silu(C, T) -> T;
        fn ggml_rms_norm(C, T, f32) -> T;
        fn ggml_mul_mat(C, T, T) -> T;
        fn ggml_get_rows(C, T, T) -> T;
        fn ggml_cont(C, T) -> T;
        fn ggml_cpy(C, T, T) -> T;
        fn ggml_cast(C, T, c_int) -> T;
        fn ggml_concat(C, T, T, c_int) -> T;
        fn ggml_permute(C, T, c_int, c_int, c_int, c_int) -> T;
        fn ggml_reshape_2d(C, T, i64, i64) -> T;
        fn ggml_reshape_3d(C, T, i64, i64, i64) -> T;
        fn ggml_view_2d(C, T, i64, i64, usize, usize) -> T;
        fn ggml_view_3d(C, T, i64, i64, i64, usize, usize, usize) -> T;
        fn ggml_soft_max_ext(C, T, T, f32, f32) -> T;
        fn ggml_rope_ext(C, T, T, T, c_int, c_int, c_int, f32, f32, f32, f32, f32, f32) -> T;
        fn ggml_flash_attn_ext(C, T, T, T, T, f32, f32, f32) -> T;
        fn ggml_flash_attn_ext_set_prec(T, c_int);
        fn ggml_mul_mat_set_prec(T, c_int);

        fn ggml_new_graph_custom(C, usize, bool) -> *mut RawGraph;
        fn ggml_build_forward_expand(*mut RawGraph, T);
        fn ggml_graph_n_nodes(*mut RawGraph) -> c_int;
        fn ggml_graph_node(*mut RawGraph, c_int) -> T;

        fn ggml_backend_dev_count() -> usize;
        fn ggml_backend_dev_get(usize) -> *mut RawDevice;
        fn ggml_backend_dev_name(*mut RawDevice) -> *const c_char;
        fn ggml_backend_dev_description(*mut RawDevice) -> *const c_char;
        fn ggml_backend_dev_memory(*mut RawDevice, *mut usize, *mut usize);
        fn ggml_backend_dev_type(*mut RawDevice) -> c_int;
        fn ggml_backend_dev_backend_reg(*mut RawDevice) -> *mut RawReg;
        fn ggml_backend_dev_init(*mut RawDevice, *const c_char) -> *mut RawBackend;
        fn ggml_backend_dev_buffer_type(*mut RawDevice) -> *mut RawBufferType;
        fn ggml_backend_dev_supports_op(*mut RawDevice, *const RawTensor) -> bool;
        fn ggml_backend_reg_name(*mut RawReg) -> *const c_char;
        fn ggml_backend_reg_get_proc_address(*mut RawReg, *const c_char) -> *mut c_void;
        fn ggml_backend_load(*const c_char) -> *mut RawReg;

        fn ggml_backend_name(*mut RawBackend) -> *const c_char;
        fn ggml_backend_free(*mut RawBackend);
        fn ggml_backend_buft_name(*mut RawBufferType) -> *const c_char;
        fn ggml_backend_buft_is_host(*mut RawBufferType) -> bool;
        fn ggml_backend_buffer_get_size(*mut RawBuffer) -> usize;
        fn ggml_backend_buffer_free(*mut RawBuffer);
        fn ggml_backend_buffer_clear(*mut RawBuffer, u8);
        fn ggml_backend_buffer_set_usage(*mut RawBuffer, c_int);
        fn ggml_backend_alloc_ctx_tensors_from_buft(C, *mut RawBufferType) -> *mut RawBuffer;
        fn ggml_backend_tensor_set(T, *const c_void, usize, usize);
        fn ggml_backend_tensor_get(*const RawTensor, *mut c_void, usize, usize);

        fn ggml_backend_sched_new(*mut *mut RawBackend, *mut *mut RawBufferType, c_int, usize, bool, bool) -> *mut RawSched;
        fn ggml_backend_sched_free(*mut RawSched);
        fn ggml_backend_sched_reset(*mut RawSched);
        fn ggml_backend_sched_alloc_graph(*mut RawSched, *mut RawGraph) -> bool;
        fn ggml_backend_sched_graph_compute(*mut RawSched, *mut RawGraph) -> c_int;
        fn ggml_backend_sched_get_n_splits(*mut RawSched) -> c_int;
        fn ggml_backend_sched_get_tensor_backend(*mut RawSched, T) -> *mut RawBackend;
        fn ggml_backend_sched_set_tensor_backend(*mut RawSched, T, *mut RawBackend);
        fn ggml_backend_sched_get_buffer_size(*mut RawSched, *mut RawBackend) -> usize;
    }
    optional {
        fn ggml_version() -> *const c_char;
        fn ggml_commit() -> *const c_char;
        fn ggml_set_rows(C, T, T, T) -> T;
        fn ggml_cumsum(C, T) -> T;
        fn ggml_gelu(C, T) -> T;
        fn ggml_tanh(C, T) -> T;
        fn ggml_div(C, T, T) -> T;
        fn ggml_sum_rows(C, T) -> T;
        fn ggml_argsort(C, T, c_int) -> T;
        fn ggml_mul_mat_id(C, T, T, T) -> T;
        fn ggml_backend_sched_set_eval_callback(*mut RawSched, Option<EvalCallback>, *mut c_void);
        fn ggml_backend_meta_device(*mut *mut RawDevice, usize, *mut c_void, *mut c_void) -> *mut RawDevice;
    }
}

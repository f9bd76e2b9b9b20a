//! The layout of `ggml_tensor`, and the check that an opened build has it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::api::{Api, InitParams, RawBuffer};

pub(crate) const MAX_DIMS: usize = 4;
const MAX_SRC: usize = 10;
const MAX_NAME: usize = 64;

/// The head of `ggml_tensor`, up to its name; the same in every build from b4753 to ggml 0.26.
#[repr(C)]
pub(crate) struct RawTensor {
    pub(crate) ty: c_int,
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) ne: [i64; MAX_DIMS],
    pub(crate) nb: [usize; MAX_DIMS],
    op: c_int,
    pub(crate) op_params: [i32; 16],
    pub(crate) flags: i32,
    pub(crate) src: [*mut RawTensor; MAX_SRC],
    pub(crate) view_src: *mut RawTensor,
    pub(crate) view_offs: usize,
    data: *mut c_void,
    pub(crate) name: [c_char; MAX_NAME],
}

/// Builds small tensors and compares every field this crate reads with what was asked for.
///
/// # Errors
/// The first field that differs, with its value.
pub(crate) fn check(api: &Api) -> Result<(), String> {
    let expect = |what: &str, is: String, want: String| {
        if is == want { Ok(()) } else { Err(format!("{what} is {is}, expected {want}")) }
    };
    for (id, name) in [(0, "f32"), (1, "f16"), (2, "q4_0"), (8, "q8_0"), (26, "i32")] {
        // SAFETY: `ggml_type_name` takes any type number in use and returns a static string.
        let is = unsafe { CStr::from_ptr((api.ggml_type_name)(id)) }.to_string_lossy().into_owned();
        expect(&format!("the name of type {id}"), is, name.to_owned())?;
    }
    let params = InitParams { mem_size: 1 << 16, mem_buffer: ptr::null_mut(), no_alloc: true };
    // SAFETY: the context is freed below, after the last use of its tensors; every call is given tensors
    // of this context with shapes its op accepts. Reading fields through `RawTensor` stays inside the
    // allocation, whose size `ggml_tensor_overhead` states and which is compared first.
    unsafe {
        let overhead = (api.ggml_tensor_overhead)();
        if overhead < size_of::<RawTensor>() {
            return Err(format!("ggml_tensor_overhead is {overhead}, less than {}", size_of::<RawTensor>()));
        }
        let ctx = (api.ggml_init)(params);
        if ctx.is_null() {
            return Err("ggml_init returned null".to_owned());
        }
        let result = (|| {
            let ne = [3i64, 5, 7, 2];
            let a = (api.ggml_new_tensor)(ctx, 0, 4, ne.as_ptr());
            let b = (api.ggml_new_tensor)(ctx, 0, 4, ne.as_ptr());
            (api.ggml_set_name)(a, c"layout-probe".as_ptr());
            expect("type", (*a).ty.to_string(), "0".into())?;
            expect("ne", format!("{:?}", (*a).ne), format!("{ne:?}"))?;
            expect("nb", format!("{:?}", (*a).nb), format!("{:?}", [4, 12, 60, 420]))?;
            expect("buffer", format!("{:?}", (*a).buffer), format!("{:?}", ptr::null_mut::<RawBuffer>()))?;
            // A bounded read: were the layout another, no terminating zero need follow.
            let name: Vec<u8> = (*a).name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
            expect("name", String::from_utf8_lossy(&name).into_owned(), "layout-probe".into())?;
            expect("ggml_nbytes", (api.ggml_nbytes)(a).to_string(), (3 * 5 * 7 * 2 * 4).to_string())?;
            let sum = (api.ggml_add)(ctx, a, b);
            expect("src[0]", format!("{:?}", (*sum).src[0]), format!("{a:?}"))?;
            expect("src[1]", format!("{:?}", (*sum).src[1]), format!("{b:?}"))?;
            expect("src[2]", format!("{:?}", (*sum).src[2]), format!("{:?}", ptr::null_mut::<RawTensor>()))?;
            expect(
                "the op of add",
                CStr::from_ptr((api.ggml_op_desc)(sum)).to_string_lossy().into(),
                "ADD".into(),
            )?;
            let view = (api.ggml_view_2d)(ctx, a, 2, 5, 12, 4);
            expect("view_src", format!("{:?}", (*view).view_src), format!("{a:?}"))?;
            expect("view_offs", (*view).view_offs.to_string(), "4".into())?;
            expect(
                "nb of a view",
                format!("{:?}", [(*view).nb[0], (*view).nb[1]]),
                format!("{:?}", [4, 12]),
            )?;
            let normed = (api.ggml_rms_norm)(ctx, a, 0.25);
            expect("op_params of rms_norm", (*normed).op_params[0].to_string(), f32_bits(0.25).to_string())?;
            (api.ggml_set_output)(sum);
            expect("flags of an output", (*sum).flags.to_string(), "2".into())
        })();
        (api.ggml_free)(ctx);
        result
    }
}

/// A float as it stands among the parameters of an op.
fn f32_bits(value: f32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}

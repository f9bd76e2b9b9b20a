use super::super::graph::tests::tensor;
use super::*;
use half::f16;

/// A tensor over bytes: its type, its shape.
fn info(op: &str, ty: TensorType, ne: [usize; 4]) -> TensorInfo {
    let row = usize::try_from(ty.row_bytes(ne[0] as u64).unwrap()).unwrap();
    let size = usize::try_from(ty.block_bytes()).unwrap();
    let nb = [size, row, row * ne[1], row * ne[1] * ne[2]];
    TensorInfo { ty: ty.id(), ne, nb, ..tensor("t-0", op, &[], 0) }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The value of `op` on 32-bit inputs.
fn value(out: &TensorInfo, inputs: &[(&TensorInfo, &[u8])]) -> Result<Vec<f64>, EvalError> {
    let inputs = inputs.iter().map(|(info, bytes)| View::new(info, bytes)).collect::<Result<_, _>>()?;
    Node { info: out, inputs }.value()
}

fn close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{found:?} {wanted:?}");
    for (f, w) in found.iter().zip(wanted) {
        assert!((f - w).abs() <= 1e-12 * w.abs().max(1.0), "{found:?} {wanted:?}");
    }
}

fn with(mut info: TensorInfo, params: &[(usize, f32)]) -> TensorInfo {
    for &(i, value) in params {
        info.params[i] = i32::from_ne_bytes(value.to_ne_bytes());
    }
    info
}

const F32: TensorType = TensorType::F32;

#[test]
fn elementwise_ops_repeat_the_second_operand() {
    let (a, b) = (info("NONE", F32, [2, 2, 1, 1]), info("NONE", F32, [2, 1, 1, 1]));
    let (x, y) = (f32s(&[1.0, 2.0, 3.0, 4.0]), f32s(&[10.0, 100.0]));
    let of = |op: &str| value(&info(op, F32, [2, 2, 1, 1]), &[(&a, &x), (&b, &y)]).unwrap();
    close(&of("ADD"), &[11.0, 102.0, 13.0, 104.0]);
    close(&of("MUL"), &[10.0, 200.0, 30.0, 400.0]);
    let wide = info("NONE", F32, [3, 1, 1, 1]);
    let three = f32s(&[1.0; 3]);
    assert!(value(&info("ADD", F32, [2, 2, 1, 1]), &[(&a, &x), (&wide, &three)]).is_err());
}

#[test]
fn norm_silu_and_scale() {
    let a = info("NONE", F32, [2, 1, 1, 1]);
    let x = f32s(&[3.0, 4.0]);
    // The mean square is 12.5; eps 12.5 makes it 25.
    close(&value(&with(info("RMS_NORM", F32, a.ne), &[(0, 12.5)]), &[(&a, &x)]).unwrap(), &[0.6, 0.8]);
    let silu = |v: f64| v / (1.0 + (-v).exp());
    close(&value(&info("SILU", F32, a.ne), &[(&a, &x)]).unwrap(), &[silu(3.0), silu(4.0)]);
    let scaled = with(info("SCALE", F32, a.ne), &[(0, 0.5), (1, 1.0)]);
    close(&value(&scaled, &[(&a, &x)]).unwrap(), &[2.5, 3.0]);
}

#[test]
fn gelu_tanh_sums_and_quotients() {
    let a = info("NONE", F32, [2, 2, 1, 1]);
    let x = f32s(&[1.0, -2.0, 0.0, 4.0]);
    let of = |op: &str, ne| value(&info(op, F32, ne), &[(&a, &x)]).unwrap();
    let gelu = of("GELU", a.ne);
    // Of the approximation: gelu(1) = 0.8411919906, gelu(-2) = -0.0454023059.
    assert!((gelu[0] - 0.841_191_990_6).abs() < 1e-9 && (gelu[1] + 0.045_402_305_9).abs() < 1e-9, "{gelu:?}");
    close(&of("TANH", a.ne), &[1f64.tanh(), (-2f64).tanh(), 0.0, 4f64.tanh()]);
    close(&of("SUM_ROWS", [1, 2, 1, 1]), &[-1.0, 4.0]);
    let (by, two) = (info("NONE", F32, [1, 2, 1, 1]), f32s(&[2.0, 4.0]));
    close(&value(&info("DIV", F32, a.ne), &[(&a, &x), (&by, &two)]).unwrap(), &[0.5, -1.0, 0.0, 1.0]);
}

#[test]
fn experts_are_sorted_picked_and_multiplied() {
    let probabilities = info("NONE", F32, [3, 2, 1, 1]);
    let p = f32s(&[0.2, 0.5, 0.3, 0.6, 0.1, 0.3]);
    let mut sort = info("ARGSORT", TensorType::I32, [3, 2, 1, 1]);
    sort.params[0] = 1;
    close(&value(&sort, &[(&probabilities, &p)]).unwrap(), &[1.0, 2.0, 0.0, 0.0, 2.0, 1.0]);
    // The two best of each token.
    let chosen = info("NONE", TensorType::I32, [2, 2, 1, 1]);
    let ids: Vec<u8> = [1i32, 2, 0, 2].iter().flat_map(|i| i.to_le_bytes()).collect();
    let each = info("NONE", F32, [1, 3, 2, 1]);
    let picked = value(&info("GET_ROWS", F32, [1, 2, 2, 1]), &[(&each, &p), (&chosen, &ids)]).unwrap();
    assert!((picked[1] - 0.3).abs() < 1e-7 && (picked[2] - 0.6).abs() < 1e-7, "{picked:?}");
    // Three experts of one row each, one column a token.
    let matrices = info("NONE", F32, [2, 1, 3, 1]);
    let w = f32s(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let columns = info("NONE", F32, [2, 1, 2, 1]);
    let x = f32s(&[2.0, 3.0, 5.0, 7.0]);
    let product = info("MUL_MAT_ID", F32, [1, 2, 2, 1]);
    let given = value(&product, &[(&matrices, &w), (&columns, &x), (&chosen, &ids)]).unwrap();
    close(&given, &[3.0, 5.0, 5.0, 12.0]);
    let outside: Vec<u8> = [1i32, 3, 0, 2].iter().flat_map(|i| i.to_le_bytes()).collect();
    assert!(value(&product, &[(&matrices, &w), (&columns, &x), (&chosen, &outside)]).is_err());
}

#[test]
fn rows_by_index_and_one_after_the_other() {
    let table = info("NONE", F32, [2, 3, 1, 1]);
    let x = f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let index = info("NONE", TensorType::I32, [2, 1, 1, 1]);
    let at = |list: [i32; 2]| {
        let bytes: Vec<u8> = list.iter().flat_map(|i| i.to_le_bytes()).collect();
        value(&info("GET_ROWS", F32, [2, 2, 1, 1]), &[(&table, &x), (&index, &bytes)])
    };
    close(&at([2, 0]).unwrap(), &[4.0, 5.0, 0.0, 1.0]);
    assert!(at([3, 0]).unwrap_err().to_string().contains("row 3 of 3"));
    assert!(at([-1, 0]).is_err());
    let mut concat = info("CONCAT", F32, [2, 6, 1, 1]);
    concat.params[0] = 1;
    close(&value(&concat, &[(&table, &x), (&table, &x)]).unwrap()[4..8], &[4.0, 5.0, 0.0, 1.0]);
}

#[test]
fn sources_are_joined_along_any_dimension_but_the_first() {
    let (a, b) = (info("NONE", F32, [1, 2, 2, 1]), info("NONE", F32, [1, 2, 1, 1]));
    let (x, y) = (f32s(&[1.0, 2.0, 3.0, 4.0]), f32s(&[5.0, 6.0]));
    let joined = |along: i32, ne, first: (&_, &_), second: (&_, &_)| {
        let mut node = info("CONCAT", F32, ne);
        node.params[0] = along;
        value(&node, &[first, second])
    };
    close(&joined(2, [1, 2, 3, 1], (&a, &x), (&b, &y)).unwrap(), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    // Each matrix is followed by its own rows of the second.
    let twice = joined(1, [1, 4, 2, 1], (&a, &x), (&a, &x)).unwrap();
    close(&twice, &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    assert!(
        joined(1, [1, 4, 2, 1], (&a, &x), (&b, &y)).unwrap_err().to_string().contains("along dimension 1")
    );
    assert!(joined(0, [2, 2, 2, 1], (&a, &x), (&a, &x)).is_err());
}

#[test]
fn a_product_repeats_the_heads_of_the_first_matrix() {
    // Two K heads of one row, four query heads.
    let (a, b) = (info("NONE", F32, [2, 1, 2, 1]), info("NONE", F32, [2, 1, 4, 1]));
    let (x, y) = (f32s(&[1.0, 0.0, 0.0, 1.0]), f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    let out = value(&info("MUL_MAT", F32, [1, 1, 4, 1]), &[(&a, &x), (&b, &y)]).unwrap();
    close(&out, &[1.0, 3.0, 6.0, 8.0]);
    // [m, n]: columns of the result follow each other.
    let (a, b) = (info("NONE", F32, [2, 2, 1, 1]), info("NONE", F32, [2, 2, 1, 1]));
    let (x, y) = (f32s(&[1.0, 2.0, 3.0, 4.0]), f32s(&[1.0, 0.0, 0.0, 1.0]));
    close(&value(&info("MUL_MAT", F32, [2, 2, 1, 1]), &[(&a, &x), (&b, &y)]).unwrap(), &[1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn a_transposed_view_is_read_by_its_strides() {
    let mut a = info("PERMUTE", F32, [2, 3, 1, 1]);
    a.nb = [12, 4, 24, 24];
    let x = f32s(&[0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
    let out = value(&info("CONT", F32, [2, 3, 1, 1]), &[(&a, &x)]).unwrap();
    close(&out, &[0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
    a.offset = 4;
    let error = value(&info("CONT", F32, [2, 3, 1, 1]), &[(&a, &x)]).unwrap_err().to_string();
    assert!(error.contains("from 4 on") && error.contains("24 bytes"), "{error}");
}

#[test]
fn both_kinds_of_rotation() {
    let a = info("NONE", F32, [4, 1, 2, 1]);
    let x = f32s(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    let positions = info("NONE", TensorType::I32, [2, 1, 1, 1]);
    let at: Vec<u8> = [0i32, 3].iter().flat_map(|i| i.to_le_bytes()).collect();
    let rope = |mode: i32, base: f32| {
        let mut rope = with(info("ROPE", F32, a.ne), &[(5, base), (6, 1.0), (8, 1.0)]);
        (rope.params[1], rope.params[2]) = (4, mode);
        value(&rope, &[(&a, &x), (&positions, &at)])
    };
    let (s, c) = (3f64.sin(), 3f64.cos());
    close(&rope(0, 100.0).unwrap(), &[1.0, 0.0, 0.0, 0.0, c, s, 0.0, 0.0]);
    close(&rope(2, 100.0).unwrap(), &[1.0, 0.0, 0.0, 0.0, c, 0.0, s, 0.0]);
    assert!(rope(8, 100.0).is_err(), "another kind");
}

#[test]
fn frequency_factors_divide_and_frequencies_fall() {
    let a = info("NONE", F32, [4, 1, 1, 1]);
    let x = f32s(&[0.0, 1.0, 0.0, 0.0]);
    let positions = info("NONE", TensorType::I32, [1, 1, 1, 1]);
    let factors = info("NONE", F32, [2, 1, 1, 1]);
    let mut rope = with(info("ROPE", F32, a.ne), &[(5, 100.0), (6, 1.0), (8, 1.0)]);
    (rope.params[1], rope.params[2]) = (4, 2);
    let (at, by) = (6i32.to_le_bytes(), f32s(&[1.0, 2.0]));
    let out = value(&rope, &[(&a, &x), (&positions, &at), (&factors, &by)]).unwrap();
    // The second frequency is 100^(-1/2), halved by its factor.
    close(&out, &[0.0, 0.3f64.cos(), 0.0, 0.3f64.sin()]);
}

#[test]
fn soft_max_scales_masks_and_leaves_hidden_positions_at_zero() {
    let a = info("NONE", F32, [2, 2, 1, 1]);
    let x = f32s(&[2.0, 9.0, 0.0, 2.0 * 3f32.ln()]);
    let mask = f32s(&[0.0, f32::NEG_INFINITY, 0.0, 0.0]);
    let op = with(info("SOFT_MAX", F32, a.ne), &[(0, 0.5)]);
    let out = value(&op, &[(&a, &x), (&a, &mask)]).unwrap();
    assert!((out[2] - 0.25).abs() < 1e-7 && out[..2] == [1.0, 0.0], "{out:?}");
}

#[test]
fn attention_in_one_node_is_the_products_and_the_soft_max() {
    // Two query heads on one K/V head, two positions, a mask in 16 bits with rows to spare.
    let (q, k) = (info("NONE", F32, [2, 2, 2, 1]), info("NONE", F32, [2, 2, 1, 1]));
    let (x, y) = (f32s(&[1.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0]), f32s(&[1.0, 0.0, 0.0, 1.0]));
    let m = info("NONE", TensorType::F16, [2, 4, 1, 1]);
    let hidden = f16::NEG_INFINITY;
    let bits: Vec<u8> = [f16::ZERO, hidden, f16::ZERO, f16::ZERO, hidden, hidden, hidden, hidden]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let op = with(info("FLASH_ATTN_EXT", F32, [2, 2, 2, 1]), &[(0, 0.5)]);
    let out = value(&op, &[(&q, &x), (&k, &y), (&k, &y), (&m, &bits)]).unwrap();
    let second = |score: f64| [1.0 / (1.0 + score.exp()), score.exp() / (1.0 + score.exp())];
    // Position 0 sees itself alone; position 1 both, with scores 0 and half the query.
    let wanted = [&[1.0, 0.0, 1.0, 0.0][..], &second(1.0), &second(2.0)].concat();
    close(&out, &wanted);
}

#[test]
fn storing_is_true_when_it_rounds() {
    let a = info("NONE", F32, [32, 1, 1, 1]);
    let values: Vec<f32> = (0..32).map(|i| i as f32 / 7.0).collect();
    let x = f32s(&values);
    let stored = |ty: TensorType| value(&info("SET_ROWS", ty, a.ne), &[(&a, &x)]).unwrap();
    let half: Vec<f64> = values.iter().map(|&v| f16::from_f32(v).to_f64()).collect();
    close(&stored(TensorType::F16), &half);
    let steps = stored(TensorType::Q8_0);
    let scale = f16::from_f32(31.0 / 7.0 / 127.0).to_f64();
    for (i, step) in steps.iter().enumerate() {
        let n = step / scale;
        assert!((n - n.round()).abs() < 1e-6 && (step - f64::from(values[i])).abs() <= scale, "{i}: {step}");
    }
    assert_eq!(stored(TensorType::F32)[31], f64::from(values[31]));
}

#[test]
fn what_is_not_implemented_is_said() {
    let a = info("NONE", F32, [2, 1, 1, 1]);
    let x = f32s(&[1.0, 2.0]);
    let error = value(&info("CONV_2D", F32, a.ne), &[(&a, &x)]).unwrap_err().to_string();
    assert!(error.contains("CONV_2D") && error.contains("t-0"), "{error}");
    assert!(value(&info("ADD", F32, a.ne), &[(&a, &x)]).is_err(), "a source is missing");
}

//! What the routers of experts decided, as captures hold it.

use super::header::TensorFile;
use super::{CaptureError, StepRows};

/// The router's decisions of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRouting<T> {
    /// What the soft-max is of, `[rows, experts]`, row-major.
    pub logits: Vec<T>,
    /// The experts that the router chose, `[rows, used]`, row-major.
    pub chosen: Vec<i32>,
}

/// Which experts there are and which the routers chose, for the rows of every forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The pass and the position of each row, in the order in which they were computed.
    pub rows: StepRows,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts that work on a token.
    pub used: usize,
    /// Layer by layer; their logits stay in the file.
    pub chosen: Vec<Vec<i32>>,
}

/// The name of the tensor of a layer's router logits.
pub(super) fn router_name(layer: usize) -> String {
    format!("router.{layer}")
}

/// The name of the tensor of a layer's chosen experts.
pub(super) fn experts_name(layer: usize) -> String {
    format!("experts.{layer}")
}

/// Reads and checks what `file` holds of it.
pub(super) fn read(file: &mut TensorFile, names: &[String]) -> Result<Option<Routing>, CaptureError> {
    let layers = (0..).take_while(|&layer| names.contains(&experts_name(layer))).count();
    if layers == 0 {
        return match names.iter().find(|name| name.starts_with("router.") || name.starts_with("experts.")) {
            None => Ok(None),
            Some(_) => Err(CaptureError::missing(&file.path, experts_name(0))),
        };
    }
    let [count, experts] = file.float_shape(&router_name(0))?;
    let given = |name: &str| names.iter().any(|n| n == name);
    // Other runtimes may have one pass over all positions and not say so.
    let rows = if given("route_step") || given("route_position") {
        StepRows { step: file.integers("route_step")?, position: file.integers("route_position")? }
    } else {
        let position = (0..count).map(|row| i32::try_from(row).unwrap_or(i32::MAX)).collect();
        StepRows { step: vec![0; count], position }
    };
    for (name, list) in [("route_step", &rows.step), ("route_position", &rows.position)] {
        if list.len() != count {
            return Err(file.wrong(name, format!("{} long", list.len()), format!("{count} entries")));
        }
    }
    let mut chosen = Vec::new();
    let mut used = 0;
    for layer in 0..layers {
        let router = router_name(layer);
        let shape: [usize; 2] = file.float_shape(&router)?;
        if shape != [count, experts] || count == 0 || experts == 0 {
            return Err(file.wrong(
                &router,
                format!("{shape:?}"),
                format!("[{count}, {experts}], none of them 0"),
            ));
        }
        let name = experts_name(layer);
        let (shape, list) = file.integer_rows(&name)?;
        if layer == 0 {
            used = shape[1];
        }
        if shape != [count, used] || used == 0 || used > experts {
            let expected = format!("[{count}, {used}] of {experts} experts");
            return Err(file.wrong(&name, format!("{shape:?}"), expected));
        }
        for row in list.chunks_exact(used) {
            let mut sorted = row.to_vec();
            sorted.sort_unstable();
            let outside = sorted[0] < 0 || usize::try_from(sorted[used - 1]).is_ok_and(|e| e >= experts);
            if outside || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                let expected = format!("{used} different experts of {experts}");
                return Err(file.wrong(&name, format!("{row:?}"), expected));
            }
        }
        chosen.push(list);
    }
    Ok(Some(Routing { rows, experts, used, chosen }))
}

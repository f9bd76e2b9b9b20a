//! Horizontal axes of the charts of a sweep.

/// The drawing, in units of the view box: the plot lies within these.
pub(super) const LEFT: f64 = 10.0;
pub(super) const RIGHT: f64 = 430.0;

/// How figures are written on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Shares as percentages.
    Percent,
    /// Differences of shares in percentage points, with a sign.
    Points,
    /// As they are.
    Plain,
    /// Powers of ten.
    Log,
}

/// An axis from one figure to another; of logarithms where the unit is [`Unit::Log`].
#[derive(Debug)]
pub(super) struct Axis {
    unit: Unit,
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis with all `figures` that are finite, and with a little air; figures up to 0 have no place on a logarithmic
    /// one and lie on its lower end.
    pub(super) fn of(unit: Unit, figures: impl Iterator<Item = f64>) -> Self {
        let figures = figures.filter(|v| v.is_finite()).filter_map(|v| match unit {
            Unit::Log => (v > 0.0).then(|| v.log10().clamp(-300.0, 300.0)),
            _ => Some(v),
        });
        let (low, high) = figures.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        if unit == Unit::Log {
            let low = (low - 0.1).floor();
            return Self { unit, low, high: (high + 0.1).ceil().max(low + 1.0) };
        }
        let air = ((high - low) * 0.04).max(1e-9);
        let (mut low, mut high) = (low - air, high + air);
        if unit == Unit::Percent {
            (low, high) = (low.max(0.0), high.min(1.0));
        }
        if !(high > low) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        Self { unit, low, high }
    }

    /// The place of a figure: what is not finite lies on the right end.
    pub(super) fn x(&self, value: f64) -> f64 {
        if value.is_nan() {
            return RIGHT;
        }
        let value = match self.unit {
            Unit::Log if value <= 0.0 => self.low,
            Unit::Log => value.log10(),
            _ => value,
        };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        round(LEFT + share * (RIGHT - LEFT))
    }

    /// Round figures on the axis, each with its text.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        if self.unit == Unit::Log {
            let (low, high) = (self.low as i32, self.high as i32);
            let step = ((high - low) / 6).max(1);
            let powers = (low..=high).step_by(step as usize);
            return powers.map(|power| (10f64.powi(power), format!("1e{power}"))).collect();
        }
        let step = step((self.high - self.low) / 5.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|i| (i as f64 * step, self.text(i as f64 * step, step))).collect()
    }

    fn text(&self, value: f64, step: f64) -> String {
        let digits = |step: f64| (-step.log10().floor()).max(0.0) as usize;
        match self.unit {
            Unit::Percent => format!("{:.*} %", digits(step * 100.0), value * 100.0),
            Unit::Points if value == 0.0 => "0".to_owned(),
            Unit::Points => format!("{:+.*}", digits(step * 100.0), value * 100.0),
            Unit::Plain | Unit::Log => format!("{value:.*}", digits(step)),
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= least * 0.999).unwrap_or(power)
}

/// A coordinate to a tenth: finer is not seen and makes the page larger.
pub(super) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(unit: Unit, figures: &[f64]) -> Vec<String> {
        Axis::of(unit, figures.iter().copied()).ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(Unit::Percent, &[0.91, 0.99]), ["92 %", "94 %", "96 %", "98 %"]);
        assert_eq!(ticks(Unit::Percent, &[0.0, 1.0]), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]);
        assert_eq!(ticks(Unit::Points, &[-0.02, 0.013]), ["-2", "-1", "0", "+1"]);
        assert_eq!(ticks(Unit::Plain, &[0.99, 1.02]), ["0.99", "1.00", "1.01", "1.02"]);
        assert_eq!(ticks(Unit::Log, &[2e-5, 3e-3]), ["1e-5", "1e-4", "1e-3", "1e-2"]);
    }

    #[test]
    fn every_figure_has_a_place() {
        for unit in [Unit::Percent, Unit::Points, Unit::Plain, Unit::Log] {
            for figures in [&[][..], &[0.5], &[f64::NAN, 0.1], &[0.0, 1e300, f64::INFINITY]] {
                let axis = Axis::of(unit, figures.iter().copied());
                for &value in figures.iter().chain(&[0.0, -1.0, f64::NEG_INFINITY]) {
                    assert!((LEFT..=RIGHT).contains(&axis.x(value)), "{unit:?} {value} {axis:?}");
                }
                assert!(axis.ticks().len() < 12);
            }
        }
        let axis = Axis::of(Unit::Plain, [1.0, 2.0].into_iter());
        assert!(axis.x(1.0) < axis.x(1.5) && axis.x(1.5) < axis.x(2.0));
    }
}

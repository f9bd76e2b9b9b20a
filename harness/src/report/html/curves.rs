//! Curves as SVG: figures over layers or steps on a logarithmic scale, with the limit and the first place beyond it.

use crate::report::format::scientific;
use crate::report::held::ratio;
use maud::{Markup, html};
use std::fmt::Write;

/// The drawing, in units of the view box: the plot lies within these.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 428.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 176.0;
/// More points than this are a line without a mark on each: in a chart that tells its figures, and in one that does not.
const MARKED: [usize; 2] = [40, 12];

/// One curve.
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: &'static str,
    /// What is at each place: a figure that is not finite is drawn on the upper edge, 0 on the lower.
    pub(crate) points: Vec<(f64, f64)>,
    /// What it is held to; curves may share a limit.
    pub(crate) limit: Option<f64>,
}

/// Curves over one axis.
pub(crate) struct Chart<'a> {
    /// The id of the drawing, unique in the page.
    pub(crate) id: String,
    /// What is drawn.
    pub(crate) title: String,
    /// What the horizontal axis counts.
    pub(crate) axis: &'a str,
    /// The curves.
    pub(crate) series: Vec<Series>,
    /// The first place beyond a limit: where, the figure, what to call it.
    pub(crate) bad: Option<(f64, f64, String)>,
    /// Whether the places lie on a logarithmic axis too, as lengths do; every place then has its mark.
    pub(crate) log: bool,
    /// Whether each mark tells its figure when it is pointed at.
    pub(crate) told: bool,
}

/// The logarithmic axis: from one power of ten to another.
struct Scale {
    low: i32,
    high: i32,
    first: f64,
    last: f64,
    log: bool,
}

impl Scale {
    fn of(series: &[Series], log: bool) -> Self {
        let figures = series.iter().flat_map(|s| s.points.iter().map(|p| p.1).chain(s.limit));
        let drawn = figures.filter(|v| v.is_finite() && *v > 0.0).map(|v| v.log10().clamp(-300.0, 300.0));
        let (low, high) = drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (-1.0, 0.0) };
        let places = series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let (first, last) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        // A little air, so that nothing lies on the edges but what belongs there.
        let (low, high) = ((low - 0.15).floor() as i32, (high + 0.15).ceil() as i32);
        Self { low, high: high.max(low + 1), first, last, log }
    }

    fn x(&self, place: f64) -> f64 {
        let at = |place: f64| if self.log { place.max(1.0).log2() } else { place };
        if self.last > self.first {
            let share = (at(place) - at(self.first)) / (at(self.last) - at(self.first));
            LEFT + 8.0 + share * (RIGHT - LEFT - 16.0)
        } else {
            f64::midpoint(LEFT, RIGHT)
        }
    }

    fn y(&self, value: f64) -> f64 {
        if !value.is_finite() {
            return TOP;
        }
        if value <= 0.0 {
            return BOTTOM;
        }
        let share = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        (BOTTOM - share * (BOTTOM - TOP)).clamp(TOP, BOTTOM)
    }

    /// The height of a power of ten.
    fn decade(&self, power: i32) -> f64 {
        round(self.y(10f64.powi(power)))
    }

    /// At most seven powers of ten.
    fn decades(&self) -> impl Iterator<Item = i32> {
        let step = ((self.high - self.low) / 6).max(1);
        (self.low..=self.high).step_by(step as usize)
    }
}

/// The chart; nothing where no curve has a point.
pub(crate) fn render(chart: &Chart<'_>) -> Markup {
    if chart.series.iter().all(|series| series.points.is_empty()) {
        return html! {};
    }
    let scale = Scale::of(&chart.series, chart.log);
    let id = &chart.id;
    let (title, desc) = (format!("{id}-t"), format!("{id}-d"));
    let mut limits: Vec<f64> = Vec::new();
    for limit in chart.series.iter().filter_map(|series| series.limit) {
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    // The name of the limit keeps away from the mark of the first bad place.
    let left = chart.bad.as_ref().is_some_and(|bad| scale.x(bad.0) > f64::midpoint(LEFT, RIGHT));
    html! {
        figure.chart id=(id) {
            figcaption {
                span.what { (chart.title) }
                @for (i, series) in chart.series.iter().enumerate() {
                    span.key {
                        svg.sample viewBox="0 0 28 10" aria-hidden="true" {
                            path class=(format!("line l{i}")) d="M1 5H27" {}
                        }
                        (series.name)
                    }
                }
            }
            svg viewBox="0 0 440 214" role="img" aria-labelledby=(format!("{title} {desc}")) {
                title id=(title) { (chart.title) }
                desc id=(desc) { (described(chart)) }
                path.grid d=(scale.decades().map(|power| format!("M{LEFT} {}H{RIGHT}", scale.decade(power))).collect::<String>()) {}
                g.y { @for power in scale.decades() { text x=(LEFT - 6.0) y=(scale.decade(power) + 4.0) { "1e" (power) } } }
                g.x {
                    @for place in ticks(&scale) { text x=(round(scale.x(place))) y=(BOTTOM + 17.0) { (place) } }
                    text x=(f64::midpoint(LEFT, RIGHT)) y=(BOTTOM + 33.0) { (chart.axis) }
                }
                @for &limit in limits.iter().filter(|limit| limit.is_finite()) {
                    @let y = round(scale.y(limit));
                    path.limit d=(format!("M{LEFT} {y}H{RIGHT}")) {}
                    @let (x, anchor) = if left { (LEFT + 4.0, "start") } else { (RIGHT, "end") };
                    text.limit x=(x) y=(y - 4.0) text-anchor=(anchor) { "limit " (scientific(limit)) }
                }
                @if let Some((place, ..)) = &chart.bad {
                    path.bad d=(format!("M{} {TOP}V{BOTTOM}", round(scale.x(*place)))) {}
                }
                @for (i, series) in chart.series.iter().enumerate() {
                    (curve(i, series, &scale, chart))
                }
                @if let Some((place, value, name)) = &chart.bad {
                    @let x = round(scale.x(*place));
                    @let y = round(scale.y(*value));
                    @let right = x > f64::midpoint(LEFT, RIGHT);
                    circle.bad cx=(x) cy=(y) r="7" {}
                    text.bad x=(if right { x - 11.0 } else { x + 11.0 }) y=(BOTTOM - 6.0) text-anchor=(if right { "end" } else { "start" }) { "first over: " (name) }
                }
            }
        }
    }
}

fn curve(index: usize, series: &Series, scale: &Scale, chart: &Chart<'_>) -> Markup {
    let mut path = String::new();
    for (i, &(place, value)) in series.points.iter().enumerate() {
        let command = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {}", round(scale.x(place)), round(scale.y(value)));
    }
    let few = series.points.len() <= MARKED[usize::from(!chart.told)];
    let marked = series.points.iter().filter(|(_, value)| few || chart.log || !value.is_finite());
    html! {
        path class=(format!("line l{index}")) d=(path) {}
        @for &(place, value) in marked {
            @let (x, y) = (round(scale.x(place)), round(scale.y(value)));
            @let beyond = series.limit.is_some_and(|limit| ratio(value, limit) > 1.0);
            @let class = format!("mark m{index}{}", if beyond { " over" } else { "" });
            @let shape = mark(index, value, x, y);
            @if chart.told {
                path class=(class) d=(shape) { title { (chart.axis) " " (place) ", " (series.name) ": " (scientific(value)) } }
            } @else {
                path class=(class) d=(shape) {}
            }
        }
    }
}

/// A mark whose form tells the curve, or a cross for what is not finite.
fn mark(index: usize, value: f64, x: f64, y: f64) -> String {
    let (x, y) = (round(x), round(y));
    if !value.is_finite() {
        return format!("M{} {}l8 8m0 -8l-8 8", x - 4.0, y - 4.0);
    }
    match index % 3 {
        0 => format!("M{} {}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", round(x - 3.0), y),
        1 => format!("M{} {}h5v5h-5z", round(x - 2.5), round(y - 2.5)),
        _ => format!("M{x} {}l4 7h-8z", round(y - 4.0)),
    }
}

/// The first, the middle and the last place; powers of two where the axis is logarithmic.
fn ticks(scale: &Scale) -> Vec<f64> {
    if scale.log {
        let clear = |place: &f64| {
            let away = |end: f64| (scale.x(*place) - scale.x(end)).abs() > 26.0;
            away(scale.first) && away(scale.last) && *place > scale.first && *place < scale.last
        };
        let mut powers: Vec<f64> = (0..32).map(|power| f64::from(power).exp2()).filter(clear).collect();
        if powers.is_empty() {
            powers.extend([(scale.first * scale.last).sqrt().round()].into_iter().filter(clear));
        }
        let step = powers.len().div_ceil(7).max(1);
        let mut ticks = vec![scale.first];
        ticks.extend(powers.into_iter().step_by(step).chain([scale.last]));
        ticks.dedup();
        return ticks;
    }
    let mut ticks = vec![scale.first, f64::midpoint(scale.first, scale.last).floor(), scale.last];
    ticks.dedup();
    ticks
}

/// The chart in words, for those who do not see it.
fn described(chart: &Chart<'_>) -> String {
    let mut text = String::new();
    for series in &chart.series {
        let worst = series
            .points
            .iter()
            .copied()
            .reduce(|a, b| if ratio(b.1, 1.0) > ratio(a.1, 1.0) { b } else { a });
        if let Some((place, value)) = worst {
            let count = series.points.len();
            let _ = write!(
                text,
                "{}: {count} figures, the worst {} at {} {place}. ",
                series.name,
                scientific(value),
                chart.axis
            );
        }
    }
    match &chart.bad {
        Some((_, value, name)) => {
            let _ = write!(text, "The first over its limit is {name} with {}.", scientific(*value));
        }
        None => text.push_str("None is over its limit."),
    }
    text
}

/// A coordinate to a tenth: finer is not seen and makes the page larger.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, limit: Option<f64>) -> Chart<'static> {
        let series = vec![Series { name: "K", points, limit }];
        Chart {
            id: "x".to_owned(),
            title: "t".to_owned(),
            axis: "layer",
            series,
            bad: None,
            log: false,
            told: false,
        }
    }

    #[test]
    fn every_figure_has_a_place_within_the_drawing() {
        let inf = f64::INFINITY;
        let points = vec![(0.0, 0.0), (1.0, 1e-320), (2.0, f64::NAN), (3.0, inf), (4.0, 1e300), (5.0, 1e-9)];
        let chart = chart(points.clone(), Some(1e-5));
        let scale = Scale::of(&chart.series, chart.log);
        for (place, value) in points {
            let (x, y) = (scale.x(place), scale.y(value));
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{place} {value}: {x} {y}");
        }
        assert_eq!((scale.y(0.0), scale.y(f64::NAN), scale.y(inf)), (BOTTOM, TOP, TOP));
        assert!(scale.decades().count() <= 8);
    }

    #[test]
    fn larger_figures_are_higher_and_the_limit_is_drawn() {
        let chart = chart(vec![(0.0, 1e-9), (1.0, 1e-3)], Some(1e-5));
        let scale = Scale::of(&chart.series, chart.log);
        assert!(scale.y(1e-3) < scale.y(1e-5) && scale.y(1e-5) < scale.y(1e-9));
        let text = render(&chart).into_string();
        assert!(text.contains("limit 1.0e-5") && text.contains(" over\""), "{text}");
    }

    #[test]
    fn lengths_lie_on_a_logarithmic_axis_with_powers_of_two() {
        let points = [1.0, 3.0, 33.0, 200.0].map(|n| (n, 1e-9)).to_vec();
        let chart = Chart { log: true, ..chart(points, None) };
        let scale = Scale::of(&chart.series, chart.log);
        assert!((scale.x(8.0) - scale.x(4.0) - (scale.x(4.0) - scale.x(2.0))).abs() < 1e-9);
        let ticks = ticks(&scale);
        assert_eq!((ticks[0], ticks[1], ticks[ticks.len() - 1]), (1.0, 2.0, 200.0));
        assert!(ticks[1..ticks.len() - 1].iter().all(|n| n.log2().fract() == 0.0), "{ticks:?}");
        let near = Scale { first: 34.0, last: 62.0, ..scale };
        assert_eq!(self::ticks(&near), [34.0, 46.0, 62.0]);
    }

    #[test]
    fn nothing_to_draw_draws_nothing_and_a_nan_is_the_worst_in_words() {
        assert_eq!(render(&chart(Vec::new(), None)).into_string(), "");
        let told = described(&chart(vec![(0.0, 5.0), (1.0, f64::NAN), (2.0, 7.0)], None));
        assert!(told.starts_with("K: 3 figures, the worst nan at layer 1."), "{told}");
    }
}

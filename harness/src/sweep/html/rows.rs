//! Charts with a row for each arm: its name above, its figure below, on an axis that all rows share. So names of any
//! length can be read on a phone.

use super::axis::{Axis, LEFT, RIGHT, Unit, round};
use maud::{Markup, html};

/// The height of a row of figures.
const HEIGHT: f64 = 34.0;
/// The height of a row of curves.
const TALL: f64 = 58.0;
/// The height of what is above and below the rows.
const HEAD: f64 = 18.0;
const FOOT: f64 = 36.0;

/// How a row is marked: by colour, and by the form of its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is to be said of it.
    Plain,
    /// Others are held against it.
    Reference,
    /// Significantly worse.
    Worse,
    /// Significantly better.
    Better,
}

/// What is drawn in a row.
pub(super) enum Figure {
    /// A figure with its interval.
    Interval {
        /// The figure.
        value: f64,
        /// The interval, where there is one.
        ends: Option<(f64, f64)>,
    },
    /// A distribution: its 5, 25, 50, 75 and 99 % quantiles and its maximum.
    Quantiles([f64; 6]),
    /// A curve from 1 downwards: places and heights, in steps.
    Steps(Vec<(f64, f64)>),
}

/// One row.
pub(super) struct Row {
    /// The arm.
    pub(super) label: String,
    /// The figures in words: the tooltip, and what the description says.
    pub(super) told: String,
    /// How it is marked.
    pub(super) kind: Kind,
    /// What is drawn.
    pub(super) figure: Figure,
}

/// A chart.
pub(super) struct Chart<'a> {
    /// The id of the drawing, unique in the page.
    pub(super) id: &'a str,
    /// What is drawn.
    pub(super) title: &'a str,
    /// What the axis counts.
    pub(super) axis: &'a str,
    /// How it is written there.
    pub(super) unit: Unit,
    /// A figure that has a line of its own: 0 of differences, 1 of ratios.
    pub(super) centre: Option<f64>,
    /// The rows.
    pub(super) rows: Vec<Row>,
}

impl Row {
    fn figures(&self) -> Vec<f64> {
        match &self.figure {
            Figure::Interval { value, ends } => {
                ends.iter().flat_map(|ends| [ends.0, ends.1]).chain([*value]).collect()
            }
            Figure::Quantiles(quantiles) => quantiles.to_vec(),
            Figure::Steps(steps) => steps.iter().map(|step| step.0).collect(),
        }
    }

    fn height(&self) -> f64 {
        if matches!(self.figure, Figure::Steps(_)) { TALL } else { HEIGHT }
    }
}

/// The chart; nothing where it has no rows.
pub(super) fn render(chart: &Chart<'_>) -> Markup {
    if chart.rows.is_empty() {
        return html! {};
    }
    let figures = chart.rows.iter().flat_map(Row::figures).chain(chart.centre);
    let axis = Axis::of(chart.unit, figures);
    let heights: f64 = chart.rows.iter().map(Row::height).sum();
    let bottom = HEAD + heights;
    let ticks: Vec<(f64, String)> =
        axis.ticks().into_iter().map(|(value, text)| (axis.x(value), text)).collect();
    let grid: String = ticks.iter().map(|(x, _)| format!("M{x} {HEAD}V{bottom}")).collect();
    let tops = chart.rows.iter().scan(HEAD, |top, row| {
        let own = *top;
        *top += row.height();
        Some(own)
    });
    html! {
        figure.chart.rows id=(chart.id) {
            figcaption { span.what { (chart.title) } }
            svg viewBox=(format!("0 0 440 {}", bottom + FOOT)) role="img" aria-labelledby=(format!("{0}-t {0}-d", chart.id)) {
                title id=(format!("{}-t", chart.id)) { (chart.title) }
                desc id=(format!("{}-d", chart.id)) { (described(chart)) }
                path.grid d=(grid) {}
                g.x aria-hidden="true" {
                    @for (x, text) in &ticks {
                        text x=(held(*x)) y=(HEAD - 6.0) { (text) }
                        text x=(held(*x)) y=(bottom + 14.0) { (text) }
                    }
                    text x=(f64::midpoint(LEFT, RIGHT)) y=(bottom + 30.0) { (chart.axis) }
                }
                @if let Some(centre) = chart.centre {
                    path.centre d=(format!("M{} {HEAD}V{bottom}", axis.x(centre))) {}
                }
                @for (row, top) in chart.rows.iter().zip(tops) { (one(row, top, &axis)) }
            }
        }
    }
}

/// Texts that are centred on a tick keep within the drawing.
fn held(x: f64) -> f64 {
    x.clamp(LEFT + 10.0, RIGHT - 12.0)
}

/// The length that a name is held to where it would run out of the drawing.
fn squeezed(label: &str) -> Option<f64> {
    // Wider than most letters of any font of this size.
    const LETTER: f64 = 6.6;
    (label.chars().count() as f64 * LETTER > RIGHT - LEFT).then_some(RIGHT - LEFT)
}

fn one(row: &Row, top: f64, axis: &Axis) -> Markup {
    let class = match row.kind {
        Kind::Plain => "row",
        Kind::Reference => "row reference",
        Kind::Worse => "row worse",
        Kind::Better => "row better",
    };
    html! {
        g class=(class) {
            title { (row.label) ": " (row.told) }
            text.label x=(LEFT) y=(top + 12.0) textLength=[squeezed(&row.label)] lengthAdjust="spacingAndGlyphs" { (row.label) }
            @match &row.figure {
                Figure::Interval { value, ends } => (interval(*value, *ends, top + 22.0, row.kind, axis)),
                Figure::Quantiles(quantiles) => (quantiles_of(quantiles, top + 22.0, axis)),
                Figure::Steps(steps) => (steps_of(steps, top + 17.0, top + TALL - 5.0, axis)),
            }
        }
    }
}

fn interval(value: f64, ends: Option<(f64, f64)>, y: f64, kind: Kind, axis: &Axis) -> Markup {
    if value.is_nan() {
        return html! { text.none x=(LEFT) y=(y + 4.0) { "no figure" } };
    }
    let x = axis.x(value);
    let mark = match kind {
        Kind::Reference => format!("M{} {y}l5 -5l5 5l-5 5z", round(x - 5.0)),
        Kind::Worse => format!("M{x} {}l5 -9h-10z", y + 5.0),
        Kind::Better => format!("M{x} {}l5 9h-10z", y - 5.0),
        Kind::Plain => format!("M{} {y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", round(x - 4.0)),
    };
    html! {
        @if let Some((low, high)) = ends.filter(|(low, high)| !low.is_nan() && !high.is_nan()) {
            @let (low, high) = (axis.x(low), axis.x(high));
            path.whisker d=(format!("M{low} {y}H{high}M{low} {}v8M{high} {}v8", y - 4.0, y - 4.0)) {}
        }
        path.point d=(mark) {}
    }
}

fn quantiles_of(quantiles: &[f64; 6], y: f64, axis: &Axis) -> Markup {
    if quantiles.iter().all(|value| *value == 0.0) {
        return html! { text.none x=(LEFT) y=(y + 4.0) { "0 in every row" } };
    }
    let [p5, p25, p50, p75, p99, max] = quantiles.map(|value| axis.x(value));
    html! {
        path.whisker d=(format!("M{p5} {y}H{p99}M{p5} {}v8M{p99} {}v8", y - 4.0, y - 4.0)) {}
        rect.box x=(p25) y=(y - 5.0) width=(round((p75 - p25).max(1.5))) height="10" {}
        path.middle d=(format!("M{p50} {}v12", y - 6.0)) {}
        path.point d=(format!("M{} {}l6 6m0 -6l-6 6", round(max - 3.0), y - 3.0)) {}
    }
}

fn steps_of(steps: &[(f64, f64)], top: f64, bottom: f64, axis: &Axis) -> Markup {
    let y = |height: f64| round(bottom - height.clamp(0.0, 1.0) * (bottom - top));
    let mut path = format!("M{LEFT} {}", y(1.0));
    for &(place, height) in steps {
        path += &format!("H{}V{}", axis.x(place), y(height));
    }
    path += &format!("H{RIGHT}");
    html! {
        path.area d=(format!("{path}V{bottom}H{LEFT}z")) {}
        path.curve d=(path) {}
        path.base d=(format!("M{LEFT} {bottom}H{RIGHT}")) {}
    }
}

/// The chart in words, for those who do not see it.
fn described(chart: &Chart<'_>) -> String {
    let rows: Vec<String> = chart.rows.iter().map(|row| format!("{}: {}.", row.label, row.told)).collect();
    rows.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(figure: Figure) -> Row {
        Row { label: "<arm>".to_owned(), told: "a & b".to_owned(), kind: Kind::Worse, figure }
    }

    fn drawn(unit: Unit, rows: Vec<Row>) -> String {
        let chart = Chart { id: "c", title: "t", axis: "x", unit, centre: Some(0.0), rows };
        render(&chart).into_string()
    }

    #[test]
    fn figures_without_a_value_say_so_and_texts_are_escaped() {
        let text = drawn(Unit::Points, vec![row(Figure::Interval { value: f64::NAN, ends: None })]);
        assert!(text.contains("no figure") && text.contains("&lt;arm&gt;: a &amp; b"), "{text}");
        assert!(!text.contains("whisker"));
        assert_eq!(drawn(Unit::Plain, Vec::new()), "");
    }

    #[test]
    fn an_interval_has_its_ends_where_the_axis_has_them() {
        let text = drawn(Unit::Points, vec![row(Figure::Interval { value: -0.1, ends: Some((-0.2, 0.0)) })]);
        let axis = Axis::of(Unit::Points, [-0.1, -0.2, 0.0].into_iter());
        assert!(text.contains(&format!("M{} 40H{}", axis.x(-0.2), axis.x(0.0))), "{text}");
    }

    #[test]
    fn a_distribution_of_zeros_and_a_curve() {
        let text = drawn(
            Unit::Log,
            vec![row(Figure::Quantiles([0.0; 6])), row(Figure::Quantiles([0.0, 0.0, 1e-9, 1e-6, 1e-3, 0.5]))],
        );
        assert!(text.contains("0 in every row") && text.contains("class=\"box\""), "{text}");
        let text = drawn(Unit::Plain, vec![row(Figure::Steps(vec![(3.0, 0.5), (9.0, 0.25)]))]);
        assert!(text.contains("class=\"curve\""), "{text}");
    }
}

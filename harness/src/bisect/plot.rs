//! A figure over places as SVG: one mark a place, its form telling the outcome, on a logarithmic scale.

use super::search::Outcome;
use crate::report::scientific;
use maud::{Markup, html};

/// Where the marks lie, in units of the view box.
const LEFT: f64 = 62.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 190.0;
/// Room for a place, and for names below.
const STEP: f64 = 24.0;
const NAMES: f64 = 106.0;
const LEAST: f64 = 420.0;

/// A figure over places.
pub struct Plot<'a> {
    /// The id of the drawing, unique in the page.
    pub id: &'a str,
    /// What is drawn.
    pub title: String,
    /// The places' names, in order.
    pub places: &'a [String],
    /// What is known, in order.
    pub points: Vec<Point>,
    /// What the figure is held to.
    pub limit: Option<f64>,
}

/// One place's figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The place.
    pub place: usize,
    /// Its figure; none where the trial gave none.
    pub value: Option<f64>,
    /// What the trial said.
    pub outcome: Outcome,
}

/// From one power of ten to another.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn of(plot: &Plot<'_>) -> Self {
        let figures = plot.points.iter().filter_map(|point| point.value).chain(plot.limit);
        let drawn = figures.filter(|v| v.is_finite() && *v > 0.0).map(|v| v.log10().clamp(-300.0, 300.0));
        let (low, high) = drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low <= high { (low, high) } else { (-1.0, 0.0) };
        let (low, high) = ((low - 0.15).floor() as i32, (high + 0.15).ceil() as i32);
        Self { low, high: high.max(low + 1) }
    }

    /// The height of a figure: one that is not finite is on the upper edge, 0 on the lower.
    fn y(&self, value: f64) -> f64 {
        if !value.is_finite() {
            return TOP;
        }
        if value <= 0.0 {
            return BOTTOM;
        }
        let share = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        round((BOTTOM - share * (BOTTOM - TOP)).clamp(TOP, BOTTOM))
    }

    fn decades(&self) -> impl Iterator<Item = (i32, f64)> {
        let step = ((self.high - self.low) / 6).max(1);
        (self.low..=self.high).step_by(step as usize).map(|power| (power, self.y(10f64.powi(power))))
    }
}

/// The horizontal place of a place.
fn x(place: usize) -> f64 {
    LEFT + STEP * (place as f64 + 0.5)
}

/// A coordinate to a tenth.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Plot<'_> {
    /// The drawing with its caption, for a page that has the reports' style.
    #[must_use]
    pub fn figure(&self) -> Markup {
        html! {
            figure.chart.broad {
                figcaption {
                    span.what { (self.title) }
                    @for (outcome, words) in [(Outcome::Good, "good"), (Outcome::Bad, "bad"), (Outcome::Skip, "skipped")] {
                        span.key {
                            svg.sample viewBox="0 0 28 10" aria-hidden="true" { (mark(outcome, true, 14.0, 5.0, None)) }
                            (words)
                        }
                    }
                }
                (self.drawing(None))
            }
        }
    }

    /// A file of its own, which needs no style from elsewhere.
    #[must_use]
    pub fn file(&self) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n",
            self.drawing(Some(FILE_STYLE)).into_string()
        )
    }

    fn drawing(&self, style: Option<&str>) -> Markup {
        let scale = Scale::of(self);
        let right = (LEFT + STEP * self.places.len() as f64).max(LEAST);
        let (width, height) = (right + 10.0, BOTTOM + NAMES);
        let (title, desc) = (format!("{}-t", self.id), format!("{}-d", self.id));
        let line = self.line(&scale);
        html! {
            svg.chart xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) role="img" aria-labelledby=(format!("{title} {desc}")) {
                title id=(title) { (self.title) }
                desc id=(desc) { (self.described()) }
                @if let Some(style) = style {
                    style { (maud::PreEscaped(style)) }
                    rect width="100%" height="100%" fill="#fff" {}
                    text.what x=(LEFT) y="11" { (self.title) }
                }
                path.grid d=(scale.decades().map(|(_, y)| format!("M{LEFT} {y}H{right}")).collect::<String>()) {}
                g.y { @for (power, y) in scale.decades() { text x=(LEFT - 6.0) y=(y + 4.0) { "1e" (power) } } }
                @for (place, name) in self.places.iter().enumerate() {
                    text.place x=(x(place) + 4.0) y=(BOTTOM + 12.0) text-anchor="end" transform=(format!("rotate(-55 {} {})", x(place) + 4.0, BOTTOM + 12.0)) {
                        (short(name))
                    }
                }
                @if let Some(limit) = self.limit.filter(|limit| limit.is_finite()) {
                    @let y = scale.y(limit);
                    path.limit d=(format!("M{LEFT} {y}H{right}")) {}
                    text.limit x=(right) y=(y - 4.0) text-anchor="end" { "limit " (scientific(limit)) }
                }
                path.line.l0 d=(line) {}
                @for point in &self.points {
                    @let y = point.value.map_or(BOTTOM, |value| scale.y(value));
                    @let told = format!("{}: {}, {}", self.places[point.place], point.outcome.name(), point.value.map_or("no figure".to_owned(), scientific));
                    (mark(point.outcome, point.value.is_some(), x(point.place), y, Some(&told)))
                }
            }
        }
    }

    /// The line through neighbours that have figures; it is broken where one has none.
    fn line(&self, scale: &Scale) -> String {
        let mut path = String::new();
        let mut pen_down = false;
        for point in &self.points {
            match point.value {
                Some(value) => {
                    let command = if pen_down { 'L' } else { 'M' };
                    path.push_str(&format!("{command}{} {}", x(point.place), scale.y(value)));
                    pen_down = true;
                }
                None => pen_down = false,
            }
        }
        path
    }

    /// In words, for those who do not see it.
    fn described(&self) -> String {
        let of = |outcome| self.points.iter().filter(|point| point.outcome == outcome).count();
        let figures = self.points.iter().filter_map(|point| Some((point.place, point.value?)));
        let worst = figures.reduce(|a, b| if a.1.is_nan() || b.1 <= a.1 { a } else { b });
        let worst = worst.map_or_else(
            || "no figures".to_owned(),
            |(place, value)| format!("the largest figure {} at {}", scientific(value), self.places[place]),
        );
        let (good, bad, skip) = (of(Outcome::Good), of(Outcome::Bad), of(Outcome::Skip));
        format!("{} places, {good} good, {bad} bad, {skip} skipped; {worst}.", self.places.len())
    }
}

/// A circle is good, a filled triangle bad, a cross skipped; a place without a figure lies on the lower edge.
fn mark(outcome: Outcome, figure: bool, x: f64, y: f64, told: Option<&str>) -> Markup {
    let (x, y) = (round(x), round(y));
    let (class, shape) = match outcome {
        Outcome::Good => ("mark m0", format!("M{} {y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", round(x - 3.5))),
        Outcome::Bad if figure => ("mark m0 over", format!("M{x} {}l4.5 8h-9z", round(y - 5.0))),
        Outcome::Bad => ("mark m1 over", format!("M{} {}h7v7h-7z", round(x - 3.5), round(y - 3.5))),
        Outcome::Skip => ("mark m2", format!("M{} {}l7 7m0 -7l-7 7", round(x - 3.5), round(y - 3.5))),
    };
    html! {
        path class=(class) d=(shape) { @if let Some(told) = told { title { (told) } } }
    }
}

/// A name that fits below its place.
fn short(name: &str) -> String {
    const MOST: usize = 16;
    if name.chars().count() <= MOST {
        name.to_owned()
    } else {
        name.chars().take(MOST - 1).chain(['…']).collect()
    }
}

/// The light colours of the reports' style.
const FILE_STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#535c66}.what{fill:#1b1f24;font-weight:600}\
    .place{font-size:11px}.y text{text-anchor:end}.grid{stroke:#d3d9e0;fill:none}.line{fill:none;stroke:#0a58a8;stroke-width:2}\
    .limit{stroke:#b42318;stroke-dasharray:6 4;fill:none}text.limit{fill:#8f1d17;stroke:none}\
    .mark{fill:#fff;stroke:#0a58a8;stroke-width:1.5}.mark.over{fill:#b42318;stroke:#b42318}.mark.m2{stroke:#6a3fa0}";

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[Option<f64>]) -> Vec<Point> {
        let point = |(place, &value): (usize, &Option<f64>)| Point { place, value, outcome: Outcome::Good };
        values.iter().enumerate().map(point).collect()
    }

    #[test]
    fn every_figure_has_a_place_within_the_drawing() {
        let places: Vec<String> = (0..6).map(|i| format!("b{i}")).collect();
        let values = [0.0, 1e-320, f64::NAN, f64::INFINITY, 1e300, 1e-9].map(Some);
        let plot = Plot {
            id: "p",
            title: "t".to_owned(),
            places: &places,
            points: points(&values),
            limit: Some(1e-5),
        };
        let scale = Scale::of(&plot);
        for value in values.into_iter().flatten() {
            assert!((TOP..=BOTTOM).contains(&scale.y(value)), "{value}");
        }
        assert_eq!((scale.y(0.0), scale.y(f64::NAN)), (BOTTOM, TOP));
        assert!(scale.decades().count() <= 8);
        let text = plot.file();
        assert!(text.contains("limit 1.0e-5") && text.contains("b5: good, 1.0e-9"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf,"), "{text}");
    }

    #[test]
    fn the_line_breaks_where_there_is_no_figure_and_a_nan_is_the_largest() {
        let places: Vec<String> = (0..4).map(|i| format!("b{i}")).collect();
        let values = [Some(1.0), None, Some(f64::NAN), Some(2.0)];
        let plot =
            Plot { id: "p", title: "t".to_owned(), places: &places, points: points(&values), limit: None };
        let line = plot.line(&Scale::of(&plot));
        assert_eq!(line.matches('M').count(), 2, "{line}");
        assert!(plot.described().contains("the largest figure nan at b2"), "{}", plot.described());
        assert_eq!(short("0123456789abcdef0"), "0123456789abcde…");
    }
}

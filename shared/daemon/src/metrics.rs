//! A daemon's metrics in the text format of Prometheus (0.0.4).

use super::counters::Row;
use super::histogram::Histogram;
use std::fmt::Write as _;

/// Collects samples and writes them as text.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Adds numbers of a status.
    pub fn rows<'r>(&mut self, rows: impl IntoIterator<Item = &'r Row>) -> &mut Self {
        for row in rows {
            let kind = if row.is_counter { "counter" } else { "gauge" };
            self.family(row.name, row.help, kind);
            self.sample(row.name, &[], row.value);
        }
        self
    }

    /// Starts a family. [`Metrics::sample`] adds its samples.
    pub fn family(&mut self, name: &str, help: &str, kind: &str) -> &mut Self {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// Adds a sample to the family that was started last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.text.push_str(name);
        self.labels(labels);
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// Adds a histogram of durations, in seconds.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> &mut Self {
        self.family(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (limit_us, count) in histogram.cumulative() {
            self.sample(&bucket, &[("le", &seconds(limit_us))], count);
        }
        let count = histogram.count();
        self.sample(&bucket, &[("le", "+Inf")], count);
        let _ = writeln!(self.text, "{name}_sum {}", seconds(histogram.sum_us()));
        self.sample(&format!("{name}_count"), &[], count)
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    fn labels(&mut self, labels: &[(&str, &str)]) {
        for (index, (name, value)) in labels.iter().enumerate() {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
    }
}

/// Formats microseconds as seconds without rounding.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn samples_read_as_the_format_says() {
        let mut metrics = Metrics::default();
        metrics.rows(&[Row {
            name: "a_total",
            help: "A\nline.",
            value: 3,
            is_counter: true,
        }]);
        metrics.family("b", "B.", "gauge");
        metrics.sample("b", &[("x", "a\"b\\c\n"), ("y", "")], 7);
        assert_eq!(
            metrics.finish(),
            "# HELP a_total A\\nline.\n# TYPE a_total counter\na_total 3\n\
             # HELP b B.\n# TYPE b gauge\nb{x=\"a\\\"b\\\\c\\n\",y=\"\"} 7\n"
        );
    }

    #[test]
    fn a_histogram_ends_in_all() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::from_micros(3));
        histogram.record(Duration::from_secs(100));
        let mut metrics = Metrics::default();
        metrics.histogram("t_seconds", "T.", &histogram);
        let text = metrics.finish();
        for line in [
            "t_seconds_bucket{le=\"0.000002\"} 0",
            "t_seconds_bucket{le=\"0.000004\"} 1",
            "t_seconds_bucket{le=\"+Inf\"} 2",
            "t_seconds_sum 100.000003",
            "t_seconds_count 2",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no {line}:\n{text}"
            );
        }
    }
}

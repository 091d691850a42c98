//! The daemon's metrics as numbers.

use std::collections::BTreeMap;

/// One number of a metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Sample {
    /// The number, which has no fraction.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count from our daemon; anything else becomes the nearest count"
    )]
    pub(crate) fn count(&self) -> u64 {
        self.value as u64
    }
}

/// All numbers of one look.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// What can be understood of the text for Prometheus. The daemon writes no escapes into labels.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }

    /// The number of the metric `name` with this label, or without labels; zero when there is none.
    pub(crate) fn count(&self, name: &str, label: Option<(&str, &str)>) -> u64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && label.is_none_or(|(key, value)| {
                    sample.labels.get(key).is_some_and(|found| found == value)
                })
        };
        self.0.iter().filter(fits).map(Sample::count).sum()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (metric, value) = line.rsplit_once(' ')?;
    let (name, labels) = match metric.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}')?),
        None => (metric, ""),
    };
    let mut pairs = BTreeMap::new();
    // A value ends with a quote and a comma; routes have neither.
    for pair in labels.split_terminator("\",").map(|pair| pair.trim_end_matches('"')) {
        let (key, value) = pair.split_once("=\"")?;
        pairs.insert(key.to_owned(), value.to_owned());
    }
    Some(Sample { name: name.to_owned(), labels: pairs, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_name_and_label() {
        let text = "# TYPE forkd_sandboxes gauge\n\
            forkd_sandboxes{state=\"running\"} 3\n\
            forkd_sandboxes{state=\"dead\"} 1\n\
            forkd_hot_bytes 4096\n\
            forkd_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status=\"404\"} 2\n\
            # EOF\n";
        let samples = Samples::parse(text);
        assert_eq!(samples.iter().count(), 4);
        assert_eq!(samples.count("forkd_sandboxes", Some(("state", "dead"))), 1);
        assert_eq!(samples.count("forkd_sandboxes", None), 4, "all of them");
        let request = samples.iter().last().unwrap();
        assert_eq!(request.labels["route"], "/v1/sandboxes/{id}");
        assert_eq!(request.labels["status"], "404");
        assert_eq!(samples.count("forkd_nothing", None), 0);
    }
}

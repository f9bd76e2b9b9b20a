//! The file of past runs: SQLite, one table of runs and one of cells.

use crate::builds::catalogue::hex;
use crate::named::named_enum;
use crate::report::{self, Report};
use crate::verdict::Status;
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The form of the file that this version reads and writes.
const FORM: i64 = 1;

const TABLES: &str = "
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        started TEXT NOT NULL,
        version TEXT NOT NULL
    );
    CREATE TABLE points (
        run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        case_id TEXT NOT NULL,
        device TEXT NOT NULL,
        machine TEXT NOT NULL,
        build TEXT NOT NULL,
        ggml TEXT NOT NULL,
        status TEXT NOT NULL,
        logits_nmse, logits_limit, kv_nmse, kv_limit, oracle_nmse, compute_seconds,
        PRIMARY KEY (run, case_id, device, build)
    );
    CREATE INDEX points_by_series ON points (case_id, device, machine);
";

/// A file of past runs that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The database refused.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
    /// Another version's file, or another program's.
    #[error("{}: the form of this file is {found}, expected {FORM}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// Its form.
        found: i64,
    },
    /// A report that cannot be read.
    #[error(transparent)]
    Report(#[from] report::ReportError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

named_enum! {
    /// A figure of a cell.
    pub enum Metric as "metric" {
        /// Logits NMSE against the reference.
        Logits = "logits",
        /// K/V NMSE of the worst layer.
        Kv = "kv",
        /// Logits NMSE against the oracle.
        Oracle = "oracle",
        /// Seconds of computing.
        Seconds = "seconds",
    }
}

impl Metric {
    /// What it is called in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Logits => "logits NMSE",
            Self::Kv => "K/V NMSE",
            Self::Oracle => "logits NMSE against the oracle",
            Self::Seconds => "seconds of computing",
        }
    }
}

/// What a series is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The case.
    pub case: String,
    /// The device's selector.
    pub device: String,
    /// What the device is: its description and driver, or the processor.
    pub machine: String,
}

/// One cell of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The run.
    pub run: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// The build.
    pub build: String,
    /// ggml's version and commit, where the build tells them.
    pub ggml: String,
    /// What became of the cell.
    pub status: Status,
    figures: [Option<f64>; 6],
}

impl Point {
    /// A figure and the limit it was held to.
    #[must_use]
    pub fn figure(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        let [logits, logits_limit, kv, kv_limit, oracle, seconds] = self.figures;
        match metric {
            Metric::Logits => (logits, logits_limit),
            Metric::Kv => (kv, kv_limit),
            Metric::Oracle => (oracle, logits_limit),
            Metric::Seconds => (seconds, None),
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(run: &str, build: &str, nmse: f64, limit: f64) -> Self {
        Self {
            run: run.to_owned(),
            started: format!("2026-11-29T00:00:{run:0>2}Z"),
            build: build.to_owned(),
            ggml: String::new(),
            status: if nmse <= limit { Status::Pass } else { Status::Diverged },
            figures: [Some(nmse), Some(limit), None, None, None, Some(1.0)],
        }
    }
}

/// A figure as the file has it: SQLite makes nothing of a NaN, and a figure that is not a number must stay one.
struct Figure(Option<f64>);

impl ToSql for Figure {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(match self.0 {
            None => Value::Null,
            Some(value) if value.is_nan() => Value::Text("nan".to_owned()),
            Some(value) => Value::Real(value),
        }))
    }
}

impl FromSql for Figure {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(match value {
            ValueRef::Null => None,
            ValueRef::Text(b"nan") => Some(f64::NAN),
            other => Some(f64::column_result(other)?),
        }))
    }
}

/// The file.
pub struct History {
    path: PathBuf,
    connection: Connection,
}

impl History {
    /// Opens the file at `path`, which is made where it is missing.
    ///
    /// # Errors
    /// When it cannot be opened, or is something else.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|source| HistoryError::Io { path: folder.to_owned(), source })?;
        }
        let at = |source| HistoryError::Database { path: path.to_owned(), source };
        let mut connection = Connection::open(path).map_err(at)?;
        connection.pragma_update(None, "foreign_keys", true).map_err(at)?;
        let transaction = connection.transaction().map_err(at)?;
        let form: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(at)?;
        let tables: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(at)?;
        if form == 0 && tables == 0 {
            transaction.execute_batch(TABLES).map_err(at)?;
            transaction.pragma_update(None, "user_version", FORM).map_err(at)?;
        } else if form != FORM {
            return Err(HistoryError::Form { path: path.to_owned(), found: form });
        }
        transaction.commit().map_err(at)?;
        Ok(Self { path: path.to_owned(), connection })
    }

    fn at(&self, source: rusqlite::Error) -> HistoryError {
        HistoryError::Database { path: self.path.clone(), source }
    }

    /// Adds the cells of a report, all or none; `false` where it has them already.
    ///
    /// # Errors
    /// A report that cannot be read, and a file that cannot be written.
    pub fn add(&mut self, report: &Path) -> Result<bool, HistoryError> {
        let report = report::read(report)?;
        let text = report::json::render(&report);
        let digest = hex(&Sha256::digest(text.as_bytes()));
        let path = self.path.clone();
        let at = |source| HistoryError::Database { path: path.clone(), source };
        let transaction = self.connection.transaction().map_err(at)?;
        let there: Option<i64> = transaction
            .query_row("SELECT id FROM runs WHERE digest = ?1", [&digest], |row| row.get(0))
            .optional()
            .map_err(at)?;
        if there.is_some() {
            return Ok(false);
        }
        let run = &report.run;
        transaction
            .execute(
                "INSERT INTO runs (digest, name, started, version) VALUES (?1, ?2, ?3, ?4)",
                params![digest, run.name, run.started, run.version],
            )
            .map_err(at)?;
        let id = transaction.last_insert_rowid();
        add_cells(&transaction, id, &report).map_err(at)?;
        transaction.commit().map_err(at)?;
        Ok(true)
    }

    /// Runs and points.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn counts(&self) -> Result<(u64, u64), HistoryError> {
        let count = |table: &str| -> rusqlite::Result<i64> {
            self.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
        };
        let counts = count("runs").and_then(|runs| Ok((runs, count("points")?)));
        let (runs, points) = counts.map_err(|source| self.at(source))?;
        Ok((runs.unsigned_abs(), points.unsigned_abs()))
    }

    /// Every series, with how many points and builds it has.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn series(&self) -> Result<Vec<(Key, u64, u64)>, HistoryError> {
        let read = || -> rusqlite::Result<Vec<(Key, u64, u64)>> {
            let mut statement = self.connection.prepare(
                "SELECT case_id, device, machine, count(*), count(DISTINCT build) FROM points \
                 GROUP BY case_id, device, machine ORDER BY case_id, device, machine",
            )?;
            let rows = statement.query_map([], |row| {
                let key = Key { case: row.get(0)?, device: row.get(1)?, machine: row.get(2)? };
                Ok((key, row.get::<_, i64>(3)?.unsigned_abs(), row.get::<_, i64>(4)?.unsigned_abs()))
            })?;
            rows.collect()
        };
        read().map_err(|source| self.at(source))
    }

    /// The points of a series in the order of their runs.
    ///
    /// # Errors
    /// When the file cannot be read, or holds a status that is none.
    pub fn points(&self, key: &Key) -> Result<Vec<Point>, HistoryError> {
        let read = || -> rusqlite::Result<Vec<Point>> {
            let mut statement = self.connection.prepare(
                "SELECT name, started, build, ggml, status, logits_nmse, logits_limit, kv_nmse, kv_limit, \
                 oracle_nmse, compute_seconds FROM points JOIN runs ON run = id \
                 WHERE case_id = ?1 AND device = ?2 AND machine = ?3 ORDER BY started, id, points.rowid",
            )?;
            let rows = statement.query_map([&key.case, &key.device, &key.machine], |row| {
                let status: String = row.get(4)?;
                let wrong = |error: crate::named::UnknownName| {
                    rusqlite::Error::FromSqlConversionFailure(4, rusqlite::types::Type::Text, Box::new(error))
                };
                let mut figures = [None; 6];
                for (i, figure) in figures.iter_mut().enumerate() {
                    *figure = row.get::<_, Figure>(5 + i)?.0;
                }
                Ok(Point {
                    run: row.get(0)?,
                    started: row.get(1)?,
                    build: row.get(2)?,
                    ggml: row.get(3)?,
                    status: status.parse().map_err(wrong)?,
                    figures,
                })
            })?;
            rows.collect()
        };
        read().map_err(|source| self.at(source))
    }
}

fn add_cells(connection: &Connection, run: i64, report: &Report) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(
        "INSERT INTO points (run, case_id, device, machine, build, ggml, status, logits_nmse, logits_limit, kv_nmse, \
         kv_limit, oracle_nmse, compute_seconds) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?;
    for cell in &report.cells {
        let part = report.part_of(&cell.id);
        let environment = part.map_or(&report.environment, |part| &part.environment);
        let selector = cell.device.to_string();
        let device = environment.devices.iter().find(|device| device.selector == selector);
        let machine = match device {
            Some(device) => {
                let driver = device.driver.as_deref().unwrap_or("");
                format!("{} {driver}", device.description).trim().to_owned()
            }
            None => environment.cpu.clone().unwrap_or_default(),
        };
        let build = environment.builds.iter().find(|build| build.name == cell.build);
        let told = build.map(|build| [build.version.clone(), build.commit.clone()]);
        let ggml: Vec<String> = told.into_iter().flatten().flatten().collect();
        let (metrics, limits) = (cell.metrics.as_ref(), cell.limits.as_ref());
        statement.execute(params![
            run,
            cell.id.case.to_string(),
            selector,
            machine,
            cell.build,
            ggml.join(" "),
            cell.status.name(),
            Figure(metrics.map(|m| m.logits.overall)),
            Figure(limits.map(|l| l.logits_nmse.limit)),
            Figure(metrics.and_then(|m| m.kv.as_ref()).map(|kv| kv.worst.nmse)),
            Figure(limits.and_then(|l| l.kv_nmse.as_ref()).map(|bound| bound.limit)),
            Figure(cell.attribution.as_ref().map(|found| found.device_nmse)),
            Figure(cell.timings.get("compute").copied()),
        ])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{BuildInfo, DeviceInfo, DeviceKind};
    use crate::report::{Cell, Environment, Run};

    /// A report of one cell, written to a file.
    fn report(folder: &Path, name: &str, build: &str, seconds: f64) -> PathBuf {
        let id = format!("m/f32/prefill@{build}:Vulkan0").parse().unwrap();
        let mut cell = Cell::new(id);
        cell.status = Status::Diverged;
        cell.limits = Some(crate::verdict::Limits::uniform(1e-5));
        cell.timings.insert("compute".to_owned(), seconds);
        let device = DeviceInfo {
            selector: "Vulkan0".to_owned(),
            name: "Vulkan0".to_owned(),
            kind: DeviceKind::Gpu,
            description: "llvmpipe".to_owned(),
            driver: Some("Mesa 22".to_owned()),
            memory_total: None,
        };
        let info = BuildInfo {
            name: build.to_owned(),
            version: Some("0.23.0".to_owned()),
            commit: None,
            files: Vec::new(),
        };
        let environment = Environment { builds: vec![info], devices: vec![device], ..Environment::default() };
        let run =
            Run { name: name.to_owned(), started: format!("2026-11-2{name}T00:00:00Z"), ..Run::default() };
        let report = Report::new(run, environment, &[], vec![cell]);
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, report::json::render(&report)).unwrap();
        path
    }

    #[test]
    fn runs_are_added_once_and_come_back_in_the_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/history.sqlite");
        let mut history = History::open(&path).unwrap();
        let late = report(folder.path(), "2", "b2", 0.5);
        let early = report(folder.path(), "1", "b1", 0.25);
        assert!(history.add(&late).unwrap());
        assert!(history.add(&early).unwrap());
        assert!(!history.add(&early).unwrap(), "a second time");
        drop(history);
        let history = History::open(&path).unwrap();
        assert_eq!(history.counts().unwrap(), (2, 2));
        let series = history.series().unwrap();
        let key = Key {
            case: "m/f32/prefill".to_owned(),
            device: "Vulkan0".to_owned(),
            machine: "llvmpipe Mesa 22".to_owned(),
        };
        assert_eq!(series, [(key.clone(), 2, 2)]);
        let points = history.points(&key).unwrap();
        assert_eq!(points.iter().map(|p| p.build.as_str()).collect::<Vec<_>>(), ["b1", "b2"]);
        assert_eq!(points[0].figure(Metric::Seconds), (Some(0.25), None));
        assert_eq!(points[0].figure(Metric::Logits), (None, Some(1e-5)));
        assert_eq!(points[1].figure(Metric::Seconds).0, Some(0.5));
        assert_eq!((points[1].status, points[1].ggml.as_str()), (Status::Diverged, "0.23.0"));
    }

    #[test]
    fn figures_that_are_no_numbers_stay_what_they_are() {
        let connection = Connection::open_in_memory().unwrap();
        for value in [None, Some(f64::NAN), Some(f64::INFINITY), Some(0.0), Some(-1e-300)] {
            let back: Figure = connection.query_row("SELECT ?1", [Figure(value)], |row| row.get(0)).unwrap();
            assert!(back.0 == value || back.0.is_some_and(f64::is_nan) && value.is_some_and(f64::is_nan));
        }
    }

    #[test]
    fn files_of_other_forms_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        let error = History::open(&path).err().unwrap().to_string();
        assert!(error.contains("a.sqlite: the form of this file is 0, expected 1"), "{error}");
        let text = folder.path().join("b.sqlite");
        std::fs::write(&text, "no database at all, but long enough to be looked at. ".repeat(20)).unwrap();
        assert!(History::open(&text).err().unwrap().to_string().contains("b.sqlite: "));
        let mut history = History::open(&folder.path().join("c.sqlite")).unwrap();
        assert!(history.add(&text).is_err());
        assert_eq!(history.counts().unwrap(), (0, 0));
    }
}

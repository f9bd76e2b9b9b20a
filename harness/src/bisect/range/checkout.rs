//! Commits of a ggml or llama.cpp checkout, each built with CMake in a worktree of its own, so that the user's working
//! tree stays as it is. Builds are kept by commit; a commit that does not build is skipped.

use super::{Range, RangeError, Source};
use crate::builds::source::{self, TreeBuild};
use crate::builds::{Backend, BuildError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commits to be searched.
#[derive(Debug, Clone)]
pub struct CheckoutSpec {
    /// The checkout.
    pub folder: PathBuf,
    /// A commit that is good.
    pub good: String,
    /// A commit that is bad.
    pub bad: String,
    /// What is to be built.
    pub backend: Backend,
    /// Further flags for CMake.
    pub flags: Vec<String>,
    /// Where worktree, object files and builds go.
    pub home: PathBuf,
    /// Compilers at once; 0 is one for each processor.
    pub jobs: usize,
}

/// The commits, from good to bad.
pub(super) struct Checkout {
    top: PathBuf,
    commits: Vec<String>,
    /// ggml's folder below the top.
    ggml: &'static str,
    flags: Vec<String>,
    home: PathBuf,
    jobs: usize,
}

/// Characters of a commit's name in labels.
const SHORT: usize = 12;

pub(super) fn range(spec: CheckoutSpec) -> Result<Range, RangeError> {
    let top = PathBuf::from(git(&spec.folder, &["rev-parse", "--show-toplevel"])?);
    let commit = |flag: &str, name: &str| {
        let wanted = format!("{name}^{{commit}}");
        git(&top, &["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted]).map_err(|_| {
            RangeError::Usage(format!("{flag} `{name}` is no commit of {}", spec.folder.display()))
        })
    };
    let (good, bad) = (commit("--good", &spec.good)?, commit("--bad", &spec.bad)?);
    let is_ancestor = |a: &str, b: &str| git(&top, &["merge-base", "--is-ancestor", a, b]).is_ok();
    let backwards = match (is_ancestor(&good, &bad), is_ancestor(&bad, &good)) {
        (true, false) => false,
        (false, true) => true,
        (true, true) => return Err(RangeError::Usage(format!("--good and --bad are both {good}"))),
        (false, false) => {
            return Err(RangeError::Usage(format!(
                "{} is no ancestor of {}, nor the other way round: there is no line of commits between them",
                spec.good, spec.bad
            )));
        }
    };
    let (old, new) = if backwards { (&bad, &good) } else { (&good, &bad) };
    let ggml = ggml_folder(&top, new).ok_or_else(|| {
        RangeError::Usage(format!(
            "{}: neither a checkout of ggml nor one of llama.cpp: {new} has no CMakeLists.txt of ggml",
            spec.folder.display()
        ))
    })?;
    let between = format!("{old}..{new}");
    let form = "--format=%H%x09%s (%cs)";
    let mut line = git(&top, &["show", "--no-patch", form, old])?;
    let mut words = vec!["log", "--first-parent", "--reverse", form, &between];
    if ggml != "." {
        // What does not touch ggml builds the same libraries.
        words.extend(["--", ggml]);
    }
    let later = git(&top, &words)?;
    if later.is_empty() {
        return Err(RangeError::Usage(format!("no commit of {between} changes {ggml}")));
    }
    line.push('\n');
    line.push_str(&later);
    let mut all: Vec<(String, String)> = line
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(commit, subject)| (commit.to_owned(), subject.to_owned()))
        .collect();
    if backwards {
        all.reverse();
    }
    let flags = source::flags(spec.backend, &spec.flags)?;
    let commits: Vec<String> = all.iter().map(|(commit, _)| commit.clone()).collect();
    Ok(Range {
        what: format!("the commits of {}", spec.folder.display()),
        labels: commits.iter().map(|commit| commit.chars().take(SHORT).collect()).collect(),
        details: all.into_iter().map(|(_, subject)| subject).collect(),
        identities: commits.iter().map(|commit| format!("{commit} {}", flags.join(" "))).collect(),
        source: Source::Checkout(Checkout { top, commits, ggml, flags, home: spec.home, jobs: spec.jobs }),
    })
}

/// Where ggml lies in a commit: in its own repository at the top, in llama.cpp's in `ggml`.
fn ggml_folder(top: &Path, commit: &str) -> Option<&'static str> {
    let has = |path: &str| git(top, &["cat-file", "-e", &format!("{commit}:{path}")]).is_ok();
    if has("ggml/CMakeLists.txt") && has("ggml/include/ggml.h") {
        return Some("ggml");
    }
    (has("CMakeLists.txt") && has("include/ggml.h")).then_some(".")
}

/// ggml's folder in a working tree.
///
/// # Errors
/// A folder that holds none.
pub fn sources_in(folder: &Path) -> Result<PathBuf, RangeError> {
    let is_ggml =
        |folder: &PathBuf| folder.join("CMakeLists.txt").is_file() && folder.join("include/ggml.h").is_file();
    [folder.join("ggml"), folder.to_owned()].into_iter().find(is_ggml).ok_or_else(|| {
        let why = "neither a checkout of ggml nor one of llama.cpp: no CMakeLists.txt of ggml";
        RangeError::Usage(format!("{}: {why}", folder.display()))
    })
}

impl Checkout {
    pub(super) fn reorder(&mut self, order: &[usize]) {
        self.commits = order.iter().map(|&i| self.commits[i].clone()).collect();
    }

    /// The libraries of a commit, or why it does not build.
    pub(super) fn build(&self, place: usize) -> Result<Result<PathBuf, String>, RangeError> {
        let commit = &self.commits[place];
        let short: String = commit.chars().take(SHORT).collect();
        let builds = self.home.join("builds");
        let into = builds.join(&short);
        if into.is_dir() {
            return Ok(Ok(into));
        }
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| RangeError::Io { path, source }
        };
        std::fs::create_dir_all(&builds).map_err(at(&builds))?;
        let worktree = self.check_out(commit)?;
        let sources = worktree.join(self.ggml);
        if !sources.join("CMakeLists.txt").is_file() {
            return Ok(Err(format!("it has no {}/CMakeLists.txt", self.ggml)));
        }
        let tree = self.home.join("cmake");
        let was_there = tree.is_dir();
        let log = builds.join(format!("{short}.log"));
        let job = TreeBuild {
            sources: &sources,
            tree: &tree,
            into: &into,
            flags: &self.flags,
            jobs: self.jobs,
            log: &log,
        };
        let mut built = source::build_tree(&job);
        if was_there && matches!(built, Err(BuildError::ToolFailed { .. })) {
            // What another commit left may be in the way.
            std::fs::remove_dir_all(&tree).map_err(at(&tree))?;
            built = source::build_tree(&job);
        }
        match built {
            Ok(()) => Ok(Ok(into)),
            Err(error @ (BuildError::ToolFailed { .. } | BuildError::BadArchive { .. })) => {
                Ok(Err(format!("it does not build ({}): {error}", log.display())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The worktree, at `commit`. One that an interrupted search left is used again.
    fn check_out(&self, commit: &str) -> Result<PathBuf, RangeError> {
        let worktree = self.worktree();
        let path = worktree.to_string_lossy().into_owned();
        if worktree.join(".git").is_file()
            && git(&worktree, &["checkout", "--quiet", "--force", "--detach", commit]).is_ok()
        {
            return Ok(worktree);
        }
        self.remove_worktree()?;
        git(&self.top, &["worktree", "add", "--quiet", "--force", "--detach", &path, commit])?;
        Ok(worktree)
    }

    fn worktree(&self) -> PathBuf {
        self.home.join("worktree")
    }

    fn remove_worktree(&self) -> Result<(), RangeError> {
        let worktree = self.worktree();
        if worktree.exists() {
            std::fs::remove_dir_all(&worktree)
                .map_err(|source| RangeError::Io { path: worktree.clone(), source })?;
        }
        git(&self.top, &["worktree", "prune"]).map(|_| ())
    }

    /// Removes worktree and object files; the builds stay.
    pub(super) fn close(self) -> Result<(), RangeError> {
        self.remove_worktree()?;
        let tree = self.home.join("cmake");
        match std::fs::remove_dir_all(&tree) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(RangeError::Io { path: tree, source })
            }
            _ => Ok(()),
        }
    }
}

/// What git prints, without the last line's end.
fn git(folder: &Path, words: &[&str]) -> Result<String, RangeError> {
    let mut command = Command::new("git");
    // A hook's or a bisect's own variables would name another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    let output = command.arg("-C").arg(folder).args(words).output().map_err(|error| {
        let hint = format!("`apt-get install git` on Debian and Ubuntu ({error}).");
        BuildError::ToolMissing { tool: "git".to_owned(), purpose: "to search commits".to_owned(), hint }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(RangeError::Usage(format!("git {} in {}: {detail}", words.join(" "), folder.display())))
}

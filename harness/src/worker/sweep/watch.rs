//! Looks at every row of logits as it is computed: keeps it where the arm is a reference, and holds it against the
//! references' own.

use super::agreement::parted;
use super::figures::Figures;
use super::kept::{Generated, Keeper, Kept, is_kept};
use super::{Found, SweepJob, SweepTask, add_since};
use crate::worker::exchange::int;
use crate::worker::protocol::{Failure, FailureKind};
use runtime::Session;
use std::time::{Duration, Instant};

/// What looks.
pub(super) struct Watch {
    keeper: Option<Keeper>,
    /// The references that are there, each with its index among the task's.
    followers: Vec<(usize, Follower)>,
    nonfinite: u64,
    looked: Duration,
    /// The first thing that went wrong where nothing could be returned.
    broken: Option<Failure>,
    row: Vec<f64>,
}

/// One reference.
struct Follower {
    kept: Kept,
    /// The reference's row that comes next.
    next: usize,
    /// Rows of the text.
    scored: Figures,
    /// Rows of the generation.
    generated: Figures,
    /// Whether a row came that the reference does not have.
    off: bool,
    row: Vec<f64>,
}

impl Watch {
    pub(super) fn open(session: &Session, job: &SweepJob, task: &SweepTask) -> Result<Self, Failure> {
        let keeper = task.keep.as_deref().map(|base| Keeper::new(base, session, job, task));
        let mut followers = Vec::new();
        for (index, base) in task.references.iter().enumerate() {
            // One that failed, in this job or an earlier one, has kept nothing.
            if let Some(base) = base.as_deref().filter(|base| is_kept(base)) {
                followers.push((index, Follower::new(Kept::open(base, task)?)));
            }
        }
        Ok(Self::of(keeper, followers))
    }

    fn of(keeper: Option<Keeper>, followers: Vec<(usize, Follower)>) -> Self {
        Self { keeper, followers, nonfinite: 0, looked: Duration::ZERO, broken: None, row: Vec::new() }
    }

    /// Looks at the row that forward `step` put out at `position`. What goes wrong is told by [`Self::check`].
    pub(super) fn row(&mut self, position: usize, step: usize, row: &[f32]) {
        let started = Instant::now();
        if self.broken.is_none() {
            self.broken = self.look(int(position), int(step), row).err();
        }
        add_since(&mut self.looked, started);
    }

    fn look(&mut self, position: i32, step: i32, row: &[f32]) -> Result<(), Failure> {
        self.nonfinite += row.iter().filter(|value| !value.is_finite()).count() as u64;
        if let Some(keeper) = &mut self.keeper {
            keeper.row(position, step, row)?;
        }
        self.row.clear();
        self.row.extend(row.iter().map(|&value| f64::from(value)));
        for (_, follower) in &mut self.followers {
            follower.look(position, step, &self.row)?;
        }
        Ok(())
    }

    /// What went wrong while rows came.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        self.broken.take().map_or(Ok(()), Err)
    }

    /// The text is at its end: what comes now is generated.
    pub(super) fn scored(&mut self) -> Result<(), Failure> {
        self.check()?;
        if let Some(keeper) = &mut self.keeper {
            keeper.scored();
        }
        match self.followers.iter().find(|(_, f)| f.off || f.next != f.kept.scored()) {
            None => Ok(()),
            Some((_, follower)) => Err(Failure {
                kind: FailureKind::Fault,
                message: format!(
                    "the reference {} scored other rows of the text: {}",
                    follower.kept.id(),
                    follower.kept.scored()
                ),
            }),
        }
    }

    /// The time that looking took; it is counted anew.
    pub(super) fn take_seconds(&mut self) -> Duration {
        std::mem::take(&mut self.looked)
    }

    /// Ends what this arm keeps for others.
    pub(super) fn keep(&mut self, tokens: &[u32], free: Option<&Generated>) -> Result<(), Failure> {
        self.keeper.take().map_or(Ok(()), |keeper| keeper.finish(tokens, free))
    }

    /// The references, by place in the list, whose trajectory the free run left.
    pub(super) fn off_track(&self, free: &Generated) -> Vec<usize> {
        let on_track = |follower: &Follower| {
            let theirs = follower.kept.generated();
            let same = theirs.is_some_and(|theirs| theirs.same_trajectory(free));
            same && !follower.off && follower.next == follower.kept.rows()
        };
        let places = self.followers.iter().enumerate();
        places.filter(|(_, (_, follower))| !on_track(follower)).map(|(place, _)| place).collect()
    }

    /// A watch of the run along one reference, which it takes over from this one.
    pub(super) fn along(&mut self, place: usize) -> Result<Self, Failure> {
        let (index, follower) = self.followers.remove(place);
        let mut fresh = Follower::new(follower.kept);
        fresh.scored = follower.scored;
        fresh.next = fresh.kept.scored();
        Ok(Self::of(None, vec![(index, fresh)]))
    }

    /// What the reference of [`Self::along`] generated.
    pub(super) fn trajectory(&self) -> Result<Generated, Failure> {
        let generated = self.followers.first().and_then(|(_, follower)| follower.kept.generated());
        generated.cloned().ok_or_else(|| Failure {
            kind: FailureKind::Input,
            message: "the reference has generated nothing".to_owned(),
        })
    }

    /// Takes a reference back after the run along it.
    pub(super) fn take_back(&mut self, place: usize, along: Self) -> Result<(), Failure> {
        self.nonfinite += along.nonfinite;
        for (index, follower) in along.followers {
            if follower.off || follower.next != follower.kept.rows() {
                return Err(Failure {
                    kind: FailureKind::Fault,
                    message: format!(
                        "the run along the reference {} gave other rows than its {}",
                        follower.kept.id(),
                        follower.kept.rows()
                    ),
                });
            }
            self.followers.insert(place, (index, follower));
        }
        Ok(())
    }

    /// Figures against each reference, by index.
    pub(super) fn found(&self, free: Option<&Generated>, prompt: usize, end: &[u32]) -> Vec<(usize, Found)> {
        let found = |follower: &Follower| {
            let mut figures = follower.scored.clone();
            figures.extend(&follower.generated);
            let both = free.zip(follower.kept.generated());
            let parted = both.and_then(|(free, theirs)| parted(theirs, free, prompt, end));
            Found { exact: both.map(|_| parted.is_none()), parted, logits: figures.finish() }
        };
        self.followers.iter().map(|(index, follower)| (*index, found(follower))).collect()
    }

    /// Values that were not finite.
    pub(super) fn nonfinite(&self) -> u64 {
        self.nonfinite
    }
}

impl Follower {
    fn new(kept: Kept) -> Self {
        let (scored, generated) = (Figures::default(), Figures::default());
        Self { kept, next: 0, scored, generated, off: false, row: Vec::new() }
    }

    fn look(&mut self, position: i32, step: i32, row: &[f64]) -> Result<(), Failure> {
        self.off = self.off || self.next >= self.kept.rows();
        if self.off {
            return Ok(());
        }
        let place = self.kept.row(self.next, &mut self.row)?;
        if self.row.len() != row.len() {
            return Err(Failure {
                kind: FailureKind::Input,
                message: format!(
                    "the reference {} has a vocabulary of {}, and here there are {}",
                    self.kept.id(),
                    self.row.len(),
                    row.len()
                ),
            });
        }
        if place != (position, step) {
            self.off = true;
            return Ok(());
        }
        let figures = if self.next < self.kept.scored() { &mut self.scored } else { &mut self.generated };
        figures.push(&self.row, row);
        self.next += 1;
        Ok(())
    }
}

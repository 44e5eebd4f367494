//! How much the daemon's log takes: of one message, about one user, some at once and then one now
//! and then.
//!
//! Others have the daemon do things, and some of what they do is noted.  Whoever does it ten
//! thousand times a second must not fill the disk, nor hide what else is noted.  What was left out
//! is counted.

use governor::clock::Clock;
use governor::nanos::Nanos;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// So many at once.
const BURST: NonZeroU32 = NonZeroU32::new(20).expect("not 0");
/// Then one in this time.
const PAUSE: Duration = Duration::from_secs(10);
/// Most pairs that are remembered, but for those that are in use.
const PAIRS: usize = 4096;

/// Time since this was made.
#[derive(Clone)]
struct Since(Instant);

impl Clock for Since {
    type Instant = Nanos;
    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

/// A message in the source, and the user that it is about.
type Pair = (Identifier, Option<u64>);

/// A layer that leaves out what is too much.
pub struct LogLimit<W> {
    limiter: RateLimiter<Pair, HashMapStateStore<Pair>, Since>,
    left_out: Mutex<LeftOut>,
    tell: W,
}

/// How many there were of each pair since the last one that was not.
#[derive(Default)]
struct LeftOut {
    counts: HashMap<Pair, u64>,
    /// From so many pairs on it is looked for those that can be forgotten.
    most: usize,
}

impl<W: Fn(&str)> LogLimit<W> {
    /// `tell` is for what was left out.
    ///
    /// # Panics
    /// Never: the pause is not zero.
    pub fn new(tell: W) -> LogLimit<W> {
        let quota = Quota::with_period(PAUSE).expect("a pause").allow_burst(BURST);
        let limiter = RateLimiter::hashmap_with_clock(quota, Since(Instant::now()));
        LogLimit { limiter, left_out: Mutex::default(), tell }
    }

    fn admits(&self, pair: Pair) -> bool {
        let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        if self.limiter.len() > left_out.most.max(PAIRS) {
            self.limiter.retain_recent();
            left_out.most = 2 * self.limiter.len();
        }
        if self.limiter.check_key(&pair).is_err() {
            *left_out.counts.entry(pair).or_default() += 1;
            return false;
        }
        if let Some(count) = left_out.counts.remove(&pair) {
            (self.tell)(&format!("{count} messages like the next were left out"));
        }
        true
    }
}

/// Writes a line to stderr, if that can be written.
pub fn to_stderr(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for LogLimit<W> {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut about = About(None);
        event.record(&mut about);
        self.admits((event.metadata().callsite(), about.0))
    }
}

/// The user that an event is about.
struct About(Option<u64>);

impl Visit for About {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "uid" {
            self.0 = Some(value);
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tracing_subscriber::layer::SubscriberExt;

    struct Count(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn one_user_fills_no_log_and_hides_nobody_else() {
        let (told, seen) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let tells = told.clone();
        let limit = LogLimit::new(move |text: &str| tells.lock().unwrap().push(text.to_owned()));
        let log = tracing_subscriber::registry().with(limit).with(Count(seen.clone()));
        let most = BURST.get() as usize;
        tracing::subscriber::with_default(log, || {
            let noise = |uid: u32| tracing::info!(uid, "guest: noise");
            (0..10_000).for_each(|_| noise(1));
            assert!((most..most + 3).contains(&seen.swap(0, Relaxed)));
            // Another user, another message, and one that is about nobody.
            noise(2);
            tracing::info!(uid = 1, "something else");
            tracing::error!("about nobody");
            assert_eq!(seen.swap(0, Relaxed), 3);
            (0..20_000).for_each(|uid| noise(uid + 10));
            assert_eq!(seen.load(Relaxed), 20_000, "each is told once");
        });
        assert!(told.lock().unwrap().len() < 3);
    }
}

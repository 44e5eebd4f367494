//! `systx top`: what goes on, again and again.

use crate::args::Top;
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::table;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue, style};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use systx_base::Time;
use systx_protocol::VolumeActivity;
use systx_protocol::call;
use systx_protocol::runtime::Runtime;

/// Shows it.  On a terminal the picture is redrawn in place; else one follows the other.
///
/// # Errors
/// The daemon does not answer, or the terminal does not.
pub fn top(args: &Top, out: Out) -> Result<i32, Problem> {
    let mut look = Looks::default();
    if args.once || out.json || !std::io::stdout().is_terminal() {
        loop {
            let sample = look.again()?;
            if out.json {
                out.json("top", &sample.json());
            } else {
                output::print(&(sample.lines().join("\n") + "\n"));
            }
            if args.once {
                return Ok(0);
            }
            if !out.json {
                output::print("\n");
            }
            std::thread::sleep(args.interval);
        }
    }
    let screen = Screen::open()?;
    loop {
        screen.draw(&look.again()?.lines())?;
        if ends(args.interval)? {
            return Ok(0);
        }
    }
}

/// What was seen at one time.
struct Sample {
    volumes: Vec<VolumeActivity>,
    rates: Vec<Option<f64>>,
    time: Time,
}

#[derive(Serialize)]
struct SampleJson<'a> {
    /// Seconds since 1970.
    time: i64,
    volumes: Vec<VolumeJson<'a>>,
}

#[derive(Serialize)]
struct VolumeJson<'a> {
    #[serde(flatten)]
    activity: &'a VolumeActivity,
    /// Since the last look; none at the first.
    commits_per_second: Option<f64>,
}

impl Sample {
    fn json(&self) -> SampleJson<'_> {
        let volumes = self.volumes.iter().zip(&self.rates);
        let volumes = volumes
            .map(|(activity, rate)| VolumeJson { activity, commits_per_second: *rate })
            .collect();
        SampleJson { time: self.time.secs, volumes }
    }
    fn lines(&self) -> Vec<String> {
        table::lines(&self.volumes, &self.rates, self.time)
    }
}

/// One look after the other.
#[derive(Default)]
struct Looks {
    last: Option<(Instant, Vec<VolumeActivity>)>,
}

impl Looks {
    fn again(&mut self) -> Result<Sample, Problem> {
        // Without a daemon nothing goes on: it is not started to say so.
        let volumes = match Runtime::find()?.connect()? {
            Some(mut client) => client.ask(&call::Top)?,
            None => Vec::new(),
        };
        let now = Instant::now();
        let rates = match &self.last {
            Some((then, before)) => {
                table::rates(before, &volumes, now.duration_since(*then).as_secs_f64())
            }
            None => volumes.iter().map(|_| None).collect(),
        };
        self.last = Some((now, volumes.clone()));
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let secs = since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        Ok(Sample { volumes, rates, time: Time { secs, nanos: 0 } })
    }
}

/// The terminal, which is as it was when this is dropped.
struct Screen;

impl Screen {
    fn open() -> std::io::Result<Screen> {
        enable_raw_mode()?;
        let screen = Screen;
        execute!(std::io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn draw(&self, lines: &[String]) -> std::io::Result<()> {
        let (width, height) = size()?;
        let mut out = std::io::stdout().lock();
        for (row, line) in (0..height).zip(lines) {
            let line = systx_base::shown(line.as_bytes());
            let cut: String = line.chars().take(width.into()).collect();
            // Cleared first: after the last column there is nothing to clear.
            queue!(out, cursor::MoveTo(0, row), Clear(ClearType::CurrentLine), style::Print(cut))?;
        }
        let rest = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        if rest < height {
            queue!(out, cursor::MoveTo(0, rest), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(std::io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Waits for the next picture; whether the user wants to leave instead.
fn ends(interval: Duration) -> std::io::Result<bool> {
    let until = Instant::now() + interval;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !poll(left)? {
            return Ok(false);
        }
        match read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press && leaves(&key) => return Ok(true),
            // Draw it anew in the new size.
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
}

fn leaves(key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c' | 'd') => control,
        _ => false,
    }
}

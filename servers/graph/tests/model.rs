//! What a block does to the file, against a model that shares nothing with it but the requests.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use systx_graph::blocks::{self, Mix};
use systx_graph::execute::{Search, execute, parts};
use systx_graph::file::{Edges, Header, PAGE, load, write_new};
use systx_graph::request::{Answer, Op, Request};
use systx_graph::serial::{Serial, Writes};

/// A directory that goes with the value.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("systx-graph-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn file(&self, name: &str) -> File {
        let how = &mut OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).open(self.0.join(name)).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Model(Vec<BTreeSet<u32>>);

impl Model {
    fn new(vertices: u32, edges: &[[u32; 2]]) -> Model {
        let mut model = Model(vec![BTreeSet::new(); vertices as usize]);
        edges.iter().for_each(|ends| assert!(model.set(*ends, true)));
        model
    }

    fn set(&mut self, [u, v]: [u32; 2], there: bool) -> bool {
        for (from, to) in [(u, v), (v, u)] {
            let row = &mut self.0[from as usize];
            if !(if there { row.insert(to) } else { row.remove(&to) }) {
                return false;
            }
        }
        true
    }

    fn edges(&self) -> Vec<[u32; 2]> {
        let row = |(u, row): (usize, &BTreeSet<u32>)| {
            row.iter().map(|v| [u as u32, *v]).filter(|[u, v]| u < v).collect::<Vec<_>>()
        };
        self.0.iter().enumerate().flat_map(row).collect()
    }

    fn path(&self, [start, end]: [u32; 2]) -> Vec<u32> {
        let mut ways = vec![Vec::new(); self.0.len()];
        ways[start as usize] = vec![start];
        let mut line = VecDeque::from([start]);
        while let Some(at) = line.pop_front() {
            for next in &self.0[at as usize] {
                if ways[*next as usize].is_empty() {
                    ways[*next as usize] = [&ways[at as usize][..], &[*next]].concat();
                    line.push_back(*next);
                }
            }
        }
        ways.swap_remove(end as usize)
    }

    fn answer(&mut self, request: &Option<Request>) -> Answer {
        let Some(Request { op, ends }) = request else { return Answer::Invalid };
        match op {
            Op::Add => Answer::Is(self.set(*ends, true)),
            Op::Delete => Answer::Is(self.set(*ends, false)),
            Op::Exists => Answer::Is(self.0[ends[0] as usize].contains(&ends[1])),
            Op::Path => Answer::Path(self.path(*ends)),
        }
    }
}

fn long() -> bool {
    std::env::var_os("SYSTX_LONG").is_some()
}

/// Recorded blocks, with something in them that is no request.
fn recorded(mix: Mix, seed: u64) -> Vec<Vec<Option<Request>>> {
    let mut text = Vec::new();
    blocks::record(mix, seed, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap().replacen("add ", "ad ", 1);
    let blocks = blocks::read(&text, mix.vertices);
    assert_eq!(blocks.len(), mix.blocks as usize);
    blocks
}

/// The parts of a block, each over the file as it was before the block.
fn in_parts(file: &File, header: Header, block: &[Option<Request>], most: usize) -> Vec<Answer> {
    let cut = parts(block, most);
    assert_eq!((cut[0].start, cut[cut.len() - 1].end), (0, block.len()));
    assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start) && cut.len() <= most);
    let mut answers = vec![None; block.len()];
    for (n, part) in cut.iter().enumerate() {
        let mut edges = Edges::new(file, header.layout, true);
        let last = n + 1 == cut.len();
        let found = execute(&mut edges, &mut Search::default(), block, part, last).unwrap();
        found.into_iter().for_each(|(n, answer)| answers[n] = Some(answer));
    }
    answers.into_iter().map(|answer| answer.expect("each has an answer")).collect()
}

/// From empty and full graphs, of rows that fill pages and words and ones that do not.
#[test]
fn blocks_do_what_the_model_does() {
    let blocks = if long() { 200 } else { 8 };
    for (seed, (vertices, edges, writes)) in
        [(2, 0, 50), (64, 100, 30), (90, 4005, 90), (200, 300, 50), (1366, 3000, 95)]
            .into_iter()
            .enumerate()
    {
        let seed = seed as u64;
        let mix = Mix { vertices, blocks, size: 100, writes, exists: 30 };
        let place = Place::new(&format!("model{seed}"));
        let start = blocks::edges(vertices, edges, seed).unwrap();
        write_new(&place.file("graph"), vertices, start.iter().copied()).unwrap();
        let writes = [Writes::AtOnce, Writes::Synced][seed as usize % 2];
        let mut serial = Serial::open(&place.0, writes).unwrap();
        let mut model = Model::new(vertices, &start);
        for (n, block) in recorded(mix, seed).iter().enumerate() {
            let want: Vec<Answer> = block.iter().map(|request| model.answer(request)).collect();
            let header = *serial.header();
            for most in [1, 2, 5, 300] {
                let found = in_parts(&place.file("graph"), header, block, most);
                assert_eq!(found, want, "seed {seed}, block {n}, {most} parts");
            }
            assert_eq!(serial.block(block).unwrap(), want, "seed {seed}, block {n}");
        }
        // The file is that of a graph that always had these edges.
        let same = write_new(&place.file("same"), vertices, model.edges().into_iter()).unwrap();
        let (header, _) = load(&place.file("graph")).unwrap();
        assert_eq!((header.root, header.height), (same.root, u64::from(blocks)), "seed {seed}");
    }
}

#[test]
fn a_damaged_file_is_found_wherever_the_damage_is() {
    let place = Place::new("damage");
    let file = place.file("graph");
    let edges = blocks::edges(300, 1000, 1).unwrap();
    write_new(&file, 300, edges.into_iter()).unwrap();
    load(&file).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let size = file.metadata().unwrap().len();
    let first = (0..100).chain([PAGE as u64 - 1, PAGE as u64, size - 1]);
    for at in first.chain((0..100).map(|_| random.u64(..size))).collect::<Vec<_>>() {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << random.u32(..8)], at).unwrap();
        let error = load(&file).expect_err("a damaged byte").to_string();
        assert!(error.contains("damaged") || error.contains("not a graph"), "{at}: {error}");
        file.write_all_at(&byte, at).unwrap();
    }
    for size in [0, 1, size - 1, size + 1] {
        file.set_len(size).unwrap();
        load(&file).expect_err("another size");
    }
}

#[test]
fn only_requests_about_vertices_are_requests() {
    for line in ["add 1 2", "delete 0 9", "exists 3 3", "path 3 3", "path 1 2 again, please"] {
        let request = Request::parse(line.as_bytes(), 10).expect(line);
        assert!(line.starts_with(&request.to_string()), "{line}");
    }
    for line in ["", "add", "add 1", "add 1 10", "add 1 1", "add -1 2", "add 1  2", "Add 1 2"] {
        assert_eq!(Request::parse(line.as_bytes(), 10), None, "{line}");
    }
    assert_eq!(Request::parse(b"add 1 \xff", 10), None);
}

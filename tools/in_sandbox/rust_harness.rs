// m3agent links this crate into test programs in place of libtest's own start, without a change to any file.
//
// It runs the tests with libtest, and writes a line for each test that exists, begins or ends: see `test_process.py`. It reads
// the key before any test runs. So text that a program under test prints is never a result.

#![feature(test)]
#![allow(deprecated)]
extern crate test;

use std::cell::RefCell;
use std::fs::File;
use std::hash::{Hasher, SipHasher};
use std::io::{Read, Write};
use std::os::unix::io::FromRawFd;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use test::{DynTestFn, ShouldPanic, StaticTestFn, TestDescAndFn};

const MOST_TEXT: usize = 16 << 10;
const CANARIES: usize = 5;

thread_local!(static PLACE: RefCell<String> = RefCell::new(String::new()));

extern "C" {
    fn fcntl(descriptor: i32, command: i32, argument: i32) -> i32;
}
const F_SETFD: i32 = 2;
const FD_CLOEXEC: i32 = 1;

struct Report {
    file: File,
    key: (u64, u64),
    number: u64,
}

impl Report {
    fn code(&self, text: &str) -> u64 {
        let mut hasher = SipHasher::new_with_keys(self.key.0, self.key.1);
        hasher.write(text.as_bytes());
        hasher.finish()
    }

    fn write(&mut self, kind: &str, name: &str, outcome: &str, text: &str) {
        self.number += 1;
        let text = &text.as_bytes()[..text.len().min(MOST_TEXT)];
        let fields = [name.as_bytes(), outcome.as_bytes(), text].map(hex).join(" ");
        let body = format!("{} {} {}", self.number, kind, fields);
        let line = format!("{} {:016x}\n", body, self.code(&body));
        let _ = self.file.write_all(line.as_bytes());
    }
}

type Shared = Arc<Mutex<Report>>;

fn tell(report: &Shared, kind: &str, name: &str, outcome: &str, text: &str) {
    report.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).write(kind, name, outcome, text);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{:02x}", byte)).collect::<String>() + "."
}

/// What a test function returns; older versions of Rust have no `Result`.
trait Ended {
    fn error(&self) -> Option<String>;
}

impl Ended for () {
    fn error(&self) -> Option<String> {
        None
    }
}

impl Ended for Result<(), String> {
    fn error(&self) -> Option<String> {
        self.as_ref().err().cloned()
    }
}

/// Run a test and report its result.
fn judged<T: Ended>(report: &Shared, name: &str, should_panic: ShouldPanic, test: impl FnOnce() -> T) -> T {
    tell(report, "start", name, "", "");
    let ended = catch_unwind(AssertUnwindSafe(test));
    let problem = match (&ended, should_panic) {
        (Ok(value), ShouldPanic::No) => value.error(),
        (Ok(_), _) => Some("the test did not panic as expected".to_string()),
        (Err(_), ShouldPanic::Yes) => None,
        (Err(panic), expected) => {
            let said = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
                .unwrap_or_default();
            let place = PLACE.with(|place| place.borrow().clone());
            match expected {
                ShouldPanic::YesWithMessage(wanted) if said.contains(wanted) => None,
                ShouldPanic::YesWithMessage(wanted) => {
                    Some(format!("{}: {}\nexpected a panic with: {}", place, said, wanted))
                }
                _ => Some(format!("{}: {}", place, said)),
            }
        }
    };
    let outcome = if problem.is_some() { "failed" } else { "passed" };
    tell(report, "result", name, outcome, &problem.unwrap_or_default());
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Run tests that must fail. Their names depend on the key.
fn canaries(report: &Shared, when: &str) {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    for number in 0..CANARIES {
        let own = report.clone();
        let name = {
            let locked = own.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            format!("test_{:016x}", locked.code(&format!("{}{}", when, number)))
        };
        let length = name.len();
        let run = move || match number {
            0 => judged(&own, &name, ShouldPanic::No, || panic!("it must fail")),
            1 => judged(&own, &name, ShouldPanic::No, || assert_eq!(vec![length], vec![0])),
            2 => judged(&own, &name, ShouldPanic::No, || assert!(length == 0, "it must fail")),
            3 => {
                let _ = judged(&own, &name, ShouldPanic::No, || Err::<(), String>("it must fail".to_string()));
            }
            _ => judged(&own, &name, ShouldPanic::Yes, || ()),
        };
        let _ = std::thread::spawn(run).join();
    }
    set_hook(hook);
}

fn opened() -> Option<Report> {
    let descriptor = std::env::var("M3AGENT_REPORT").ok()?.parse().ok()?;
    // a program that a test starts, often this one, must not write into the report
    std::env::remove_var("M3AGENT_REPORT");
    unsafe { fcntl(descriptor, F_SETFD, FD_CLOEXEC) };
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    let mut key = [0; 16];
    file.read_exact(&mut key).ok()?;
    let mut words = key.chunks(8).map(|half| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    let key = (words.next()?, words.next()?);
    Some(Report { file, key, number: 0 })
}

/// Run the tests of a program as libtest does.
pub fn run(tests: &[&TestDescAndFn]) {
    let report = match opened() {
        Some(report) => Arc::new(Mutex::new(report)),
        None => return test::test_main_static(tests),
    };
    let arguments: Vec<String> = std::env::args().collect();
    let options = match test::test::parse_opts(&arguments) {
        Some(Ok(options)) => options,
        _ => std::process::exit(2),
    };
    let mut own = Vec::new();
    for each in tests {
        let name = each.desc.name.to_string();
        let function = match each.testfn {
            StaticTestFn(function) => function,
            _ => continue, // a benchmark
        };
        tell(&report, "list", &name, if each.desc.ignore { "skipped" } else { "" }, "");
        let (should_panic, report) = (each.desc.should_panic, report.clone());
        let testfn = DynTestFn(Box::new(move || judged(&report, &name, should_panic, function)));
        own.push(TestDescAndFn { desc: each.desc.clone(), testfn });
    }
    canaries(&report, "before");
    let hook = take_hook();
    set_hook(Box::new(move |panic| {
        let place = panic.location().map(|at| at.to_string()).unwrap_or_default();
        PLACE.with(|own| *own.borrow_mut() = place);
        hook(panic)
    }));
    let green = test::run_tests_console(&options, own).unwrap_or(false);
    canaries(&report, "after");
    tell(&report, "done", "", "", "");
    if !green {
        std::process::exit(101);
    }
}

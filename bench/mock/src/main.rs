//! Backend and client of the benchmarks in one process: `ferrule-bench-mock PORT` serves a mock vLLM on PORT,
//! reads one order a line (JSON, see `run::Order`) from standard input and answers each with one line (`run::Report`).

mod conn;
mod driver;
mod process;
mod run;
mod wire;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc;

use mio::{Poll, Waker};

use crate::run::Order;

fn main() -> ExitCode {
    let Some(port) = std::env::args().nth(1).and_then(|word| word.parse().ok()) else {
        eprintln!("usage: ferrule-bench-mock PORT   (orders on standard input, reports on standard output)");
        return ExitCode::from(2);
    };
    match serve(port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ferrule-bench-mock: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve(port: u16) -> io::Result<()> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), driver::COMMANDS)?;
    let (sender, orders) = mpsc::channel::<Order>();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(order) => drop(sender.send(order).map(|()| waker.wake())),
                Err(e) => println!("{{\"errors\":{{\"bad order: {}\":1}}}}", e.to_string().replace('"', "'")),
            }
        }
        // The caller is gone: nothing is left to do.
        std::process::exit(0);
    });
    driver::Driver::new(poll, port)?.serve(&orders, |report| {
        let line = serde_json::to_string(report).unwrap_or_default();
        let mut out = io::stdout().lock();
        drop(writeln!(out, "{line}").and_then(|()| out.flush()));
    })
}

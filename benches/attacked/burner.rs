//! A process that only takes CPU.

use std::thread;
use std::time::{Duration, Instant};

/// Burns this percentage of a core for these seconds, on as many threads as there are cores.
pub fn run(arguments: &[String]) {
    let [percent, seconds] = arguments else { panic!("PERCENT SECONDS") };
    let cores = thread::available_parallelism().unwrap().get();
    let share = percent.parse::<f64>().unwrap() / 100.0 / cores as f64;
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let slice = Duration::from_millis(10);
    let burn = || {
        while Instant::now() < end {
            let began = Instant::now();
            while began.elapsed() < slice.mul_f64(share.min(1.0)) {
                std::hint::spin_loop();
            }
            thread::sleep(slice.saturating_sub(began.elapsed()));
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(burn);
        }
    });
}

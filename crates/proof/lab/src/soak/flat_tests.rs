use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// The resources of a process by its age in seconds and its index.
struct Course {
    lives: u32,
    life_seconds: u32,
    period_seconds: u32,
    bytes: fn(u32, f64) -> f64,
    descriptors: fn(u32, f64) -> u64,
}

/// Flat, except for a sound program's warm-up and fluctuations.
const SOUND: Course = Course {
    lives: 1,
    life_seconds: 3600,
    period_seconds: 5,
    bytes: |_, age| 6e6 - 4e6 * (-age / 5.0).exp(),
    descriptors: |_, _| 50,
};

/// Every third worker needs an additional buffer once.
fn step(life: u32, age: f64) -> f64 {
    if life.is_multiple_of(3) && age > 100.0 { 950e3 } else { 0.0 }
}

fn wrong(course: &Course) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(11);
    let mut samples = Vec::new();
    for life in 0..course.lives {
        for age in (0..course.life_seconds).step_by(course.period_seconds as usize) {
            // Occasionally a command arrives, and the allocator grows or shrinks by a step.
            let noise = random.random_range(0.0..250e3);
            let visitors = if random.random_bool(0.05) { 3 } else { 0 };
            let pools = random.random_range(8..13_u64) << 21;
            samples.push(Sample {
                seconds: f64::from(life * course.life_seconds + age),
                volume: "thin".to_owned(),
                role: Role::Worker,
                pid: 100 + life,
                birth_ticks: u64::from(life),
                anonymous_bytes: ((course.bytes)(life, f64::from(age)) + noise) as u64 + pools,
                // Buffers come and go by chunks of 2 MiB.
                huge_bytes: Some(pools),
                proportional_bytes: 0,
                resident_bytes: 0,
                descriptors: Some((course.descriptors)(life, f64::from(age)) + visitors),
                threads: 12,
            });
        }
    }
    let verdicts = judge(&samples, &Limits::for_seconds(3600.0));
    assert_eq!(verdicts.len(), 1);
    assert_eq!(verdicts[0].processes, course.lives as usize);
    verdicts[0].wrong.clone()
}

#[test]
fn a_sound_process_is_flat() {
    assert_eq!(wrong(&SOUND), Vec::<String>::new());
    let bytes = |life, age| (SOUND.bytes)(life, age) + step(life, age);
    let replaced = Course { lives: 24, life_seconds: 150, bytes, ..SOUND };
    assert_eq!(wrong(&replaced), Vec::<String>::new());
    let replaced = Course { bytes: |_, age| (SOUND.bytes)(0, age) + step(0, age), ..SOUND };
    assert_eq!(wrong(&replaced), Vec::<String>::new());
}

#[test]
fn a_leak_of_two_kibibytes_a_second_is_found_in_an_hour() {
    let leak =
        Course { bytes: |life, age| (SOUND.bytes)(life, age) + 12_288.0 * age + step(life, age), ..SOUND };
    let wrong = wrong(&leak);
    assert!(wrong.len() == 1 && wrong[0].starts_with("memory within a life"), "{wrong:?}");
}

/// Every worker's front end reconnects, at varying ages.
fn first_return(life: u32, age: f64) -> f64 {
    if age > 65.0 + f64::from(life * 7 % 80) { 860e3 } else { 0.0 }
}

#[test]
fn a_step_that_each_worker_takes_once_is_no_growth() {
    let steps = Course {
        lives: 24,
        life_seconds: 150,
        bytes: |life, age| (SOUND.bytes)(life, age) + first_return(life, age),
        ..SOUND
    };
    assert_eq!(wrong(&steps), Vec::<String>::new());
}

#[test]
fn a_second_step_is_growth() {
    let steps = Course {
        lives: 24,
        life_seconds: 250,
        bytes: |life, age| {
            (SOUND.bytes)(life, age) + first_return(life, age) + first_return(life, age - 60.0)
        },
        ..SOUND
    };
    let wrong = wrong(&steps);
    assert!(wrong.len() == 1 && wrong[0].starts_with("memory within a life"), "{wrong:?}");
}

#[test]
fn a_leak_is_found_in_workers_that_live_for_minutes() {
    // Some of them take a step because of the load, like sound ones.
    let leak = Course {
        lives: 24,
        life_seconds: 150,
        bytes: |life, age| (SOUND.bytes)(life, age) + 12_288.0 * age + step(life, age),
        ..SOUND
    };
    let wrong = wrong(&leak);
    assert!(wrong.len() == 1 && wrong[0].starts_with("memory within a life"), "{wrong:?}");
}

#[test]
fn a_descriptor_for_each_kill_is_found_in_who_lives_on() {
    // Ten kills in an hour.
    let leak = Course { descriptors: |_, age| 50 + (age / 360.0) as u64, ..SOUND };
    let wrong = wrong(&leak);
    assert!(wrong.len() == 1 && wrong[0].starts_with("descriptors within a life"), "{wrong:?}");
}

#[test]
fn a_descriptor_for_each_kill_is_found_where_each_successor_inherits_one_more() {
    let leak = Course { lives: 12, life_seconds: 300, descriptors: |life, _| 50 + u64::from(life), ..SOUND };
    let wrong = wrong(&leak);
    assert!(wrong.len() == 1 && wrong[0].starts_with("descriptors over successors"), "{wrong:?}");
}

#[test]
fn memory_that_each_successor_has_more_of_is_found() {
    let leak = Course {
        lives: 20,
        life_seconds: 180,
        bytes: |life, age| (SOUND.bytes)(life, age) + 262_144.0 * f64::from(life),
        ..SOUND
    };
    let wrong = wrong(&leak);
    assert!(wrong.len() == 1 && wrong[0].starts_with("memory over successors"), "{wrong:?}");
}

#[test]
fn a_life_that_was_too_short_says_nothing() {
    let short = Course { life_seconds: 20, bytes: |_, age| 1e6 * age, ..SOUND };
    assert_eq!(wrong(&short), Vec::<String>::new());
}

#[test]
fn buffers_that_are_not_given_back_are_found() {
    let mut samples = Vec::new();
    for look in 0..400_u32 {
        let pools = u64::from(look / 50) << 21;
        samples.push(Sample {
            seconds: f64::from(look) * 9.0,
            volume: "thin".to_owned(),
            role: Role::Worker,
            pid: 100,
            birth_ticks: 1,
            anonymous_bytes: pools + (2 << 20),
            huge_bytes: Some(pools),
            proportional_bytes: 0,
            resident_bytes: 0,
            descriptors: Some(50),
            threads: 12,
        });
    }
    let wrong = judge(&samples, &Limits::for_seconds(3600.0)).remove(0).wrong;
    assert!(wrong.len() == 1 && wrong[0].starts_with("buffers within a life"), "{wrong:?}");
}

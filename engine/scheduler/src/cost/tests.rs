use super::*;

const COSTS: Costs =
    Costs { decode_us: 1000.0, row_us: 100.0, read_us: 1.0, prefill_us: 500.0, token_us: 50.0, depth_us: 0.1 };

fn row(tokens: usize, depth: usize) -> Row {
    Row { tokens, depth }
}

#[test]
fn a_pass_costs_something_and_each_row_more() {
    let model = CostModel::new(COSTS);
    assert_eq!(model.predict_us(Pass::Decode, []), 0.0);
    assert_eq!(model.predict_us(Pass::Decode, [row(1, 50), row(1, 0)]), 1250.0);
    assert_eq!(model.predict_us(Pass::Prefill, [row(100, 1000)]), 500.0 + 100.0 * (50.0 + 105.0));
}

#[test]
fn a_chunk_is_as_long_as_the_time_that_is_left() {
    let model = CostModel::new(COSTS);
    for depth in [0, 100, 2000, 8000] {
        for left_us in [0.0, 100.0, 5_000.0, 80_000.0] {
            let tokens = model.tokens_within(left_us, depth);
            let predicted = |tokens| model.predict_us(Pass::Prefill, [row(tokens, depth)]) - COSTS.prefill_us;
            assert!(predicted(tokens) <= left_us * 1.001, "{depth} {left_us}: {tokens}");
            assert!(predicted(tokens + tokens / 10 + 2) > left_us, "{depth} {left_us}: {tokens} is too few");
        }
    }
    assert_eq!(model.tokens_within(-5.0, 0), 0);
}

/// A machine whose passes cost this, with so much noise, the same every time.
struct Machine {
    truth: CostModel,
    noise: f64,
    state: u64,
}

impl Machine {
    fn new(truth: Costs, noise: f64) -> Self {
        Self { truth: CostModel::new(truth), noise, state: 1 }
    }

    /// 0 to 1.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 40) as f64 / (1u64 << 24) as f64
    }

    fn pass(&mut self, model: &mut CostModel, pass: Pass, rows: &[Row]) {
        let us = self.truth.predict_us(pass, rows.iter().copied()) * (1.0 + self.noise * (2.0 * self.draw() - 1.0));
        model.observe(pass, rows.iter().copied(), Duration::from_secs_f64(us / 1e6));
    }

    /// Prompts of 1,900 tokens, in chunks of 64 to 256, in so many passes.
    fn prompts(&mut self, model: &mut CostModel, passes: usize) {
        let mut depth = 0;
        for _ in 0..passes {
            let tokens = (64 + (self.draw() * 24.0) as usize * 8).min(1900 - depth);
            self.pass(model, Pass::Prefill, &[row(tokens, depth)]);
            depth = (depth + tokens) % 1900;
        }
    }

    /// Answers of 1 to 8 requests that grow and end.
    fn answers(&mut self, model: &mut CostModel, passes: usize) {
        let mut rows = vec![row(1, 50)];
        for _ in 0..passes {
            rows.iter_mut().for_each(|row| row.depth += 1);
            if self.draw() < 0.1 && rows.len() < 8 {
                rows.push(row(1, (self.draw() * 1500.0) as usize));
            }
            if self.draw() < 0.1 && rows.len() > 1 {
                rows.remove(0);
            }
            self.pass(model, Pass::Decode, &rows);
        }
    }

    /// How far the model is off, as a part of what is so.
    fn error(&self, model: &CostModel, pass: Pass, rows: &[Row]) -> f64 {
        let [of_model, of_truth] = [model, &self.truth].map(|of| of.predict_us(pass, rows.iter().copied()));
        (of_model / of_truth - 1.0).abs()
    }
}

/// Reading costs eight times what was thought, and all else is cheaper.
const DEEP: Costs =
    Costs { decode_us: 1500.0, row_us: 60.0, read_us: 0.3, prefill_us: 300.0, token_us: 40.0, depth_us: 0.04 };
const THOUGHT: Costs =
    Costs { decode_us: 1000.0, row_us: 100.0, read_us: 0.04, prefill_us: 500.0, token_us: 50.0, depth_us: 0.005 };

#[test]
fn prompts_are_predicted_within_a_tenth_after_some_tens_of_passes_however_deep() {
    for noise in [0.0, 0.05, 0.15] {
        let (mut machine, mut model) = (Machine::new(DEEP, noise), CostModel::new(THOUGHT));
        let deep = [row(64, 1836)];
        assert!(machine.error(&model, Pass::Prefill, &deep) > 0.4);
        machine.prompts(&mut model, 50);
        for depth in [0, 300, 900, 1400, 1836] {
            for tokens in [64, 128, 256] {
                let error = machine.error(&model, Pass::Prefill, &[row(tokens, depth)]);
                assert!(error < 0.1, "{error} for {tokens} at {depth}, noise {noise}: {:?}", model.costs());
            }
        }
        assert_eq!(model.costs().row_us, THOUGHT.row_us, "answers are another matter");
    }
}

#[test]
fn answers_are_predicted_within_a_tenth_however_many_they_are() {
    for noise in [0.0, 0.1] {
        let (mut machine, mut model) = (Machine::new(DEEP, noise), CostModel::new(THOUGHT));
        machine.answers(&mut model, 120);
        for rows in [1, 2, 4, 8] {
            for depth in [500, 1000, 1900] {
                let error = machine.error(&model, Pass::Decode, &vec![row(1, depth); rows]);
                assert!(error < 0.1, "{error} for {rows} at {depth}, noise {noise}: {:?}", model.costs());
            }
        }
        // Nobody was so short, and nobody shared a pass with so many.
        for rows in [vec![row(1, 10); 2], vec![row(1, 1000); 16]] {
            let error = machine.error(&model, Pass::Decode, &rows);
            assert!(error < 0.3, "{error} for {rows:?}, noise {noise}: {:?}", model.costs());
        }
    }
}

#[test]
fn predictions_follow_the_machine_and_forget_a_hiccup() {
    let mut model = CostModel::new(COSTS);
    let rows = [row(1, 100); 4];
    let before = model.predict_us(Pass::Decode, rows);
    for _ in 0..10 {
        model.observe(Pass::Decode, rows, Duration::from_secs_f64(before * 3.0 / 1e6));
    }
    let after = model.predict_us(Pass::Decode, rows);
    assert!((after / before - 3.0).abs() < 0.1, "{}", after / before);
    let others = [row(1, 2000); 2];
    let of_others = model.predict_us(Pass::Decode, others) / CostModel::new(COSTS).predict_us(Pass::Decode, others);
    assert!((of_others - 3.0).abs() < 0.3, "what was not told apart changes with the rest: {of_others}");
    model.observe(Pass::Decode, rows, Duration::from_secs(100));
    assert!(model.predict_us(Pass::Decode, rows) < after * 1.1);
    assert_eq!(
        model.predict_us(Pass::Prefill, [row(10, 0)]),
        CostModel::new(COSTS).predict_us(Pass::Prefill, [row(10, 0)])
    );
}

#[test]
fn a_machine_that_changes_is_followed_and_what_was_learned_of_it_is_kept() {
    let (mut machine, mut model) = (Machine::new(DEEP, 0.05), CostModel::new(THOUGHT));
    machine.prompts(&mut model, 100);
    let Costs { prefill_us, token_us, depth_us, .. } = DEEP;
    // Half of the processors are somebody else's now; then they come back.
    for times in [2.0, 1.0] {
        let now =
            Costs { prefill_us: prefill_us * times, token_us: token_us * times, depth_us: depth_us * times, ..DEEP };
        machine.truth = CostModel::new(now);
        machine.prompts(&mut model, 12);
        for (tokens, depth) in [(256, 0), (128, 800), (64, 1836)] {
            let error = machine.error(&model, Pass::Prefill, &[row(tokens, depth)]);
            assert!(error < 0.15, "{error} for {tokens} at {depth}, {times} times: {:?}", model.costs());
        }
    }
}

#[test]
fn one_pass_that_took_a_hundred_times_as_long_derails_nothing() {
    for after in [0, 3, 10, 60, 200] {
        let (mut machine, mut model) = (Machine::new(DEEP, 0.05), CostModel::new(DEEP));
        machine.prompts(&mut model, after);
        for times in [100.0, 0.01] {
            let disturbed = [row(64, 1836)];
            let us = machine.truth.predict_us(Pass::Prefill, disturbed) * times;
            model.observe(Pass::Prefill, disturbed, Duration::from_secs_f64(us / 1e6));
            for (tokens, depth) in [(256, 0), (128, 800), (64, 1836)] {
                let error = machine.error(&model, Pass::Prefill, &[row(tokens, depth)]);
                // As half more than was thought, as long as nobody knows better.
                let most = if after < 10 { 0.5 } else { 0.3 };
                assert!(error < most, "{error} for {tokens} at {depth}, {times} times after {after}");
            }
            machine.prompts(&mut model, 20);
            for (tokens, depth) in [(256, 0), (128, 800), (64, 1836)] {
                let error = machine.error(&model, Pass::Prefill, &[row(tokens, depth)]);
                assert!(error < 0.1, "{error} for {tokens} at {depth}, {times} times after {after}, later");
            }
        }
    }
}

#[test]
fn nothing_that_is_seen_makes_a_pass_cost_nothing_or_a_cost_less_than_nothing() {
    let odd = [0.0, f64::NAN, f64::INFINITY, -3.0, 1e-300, 1e-9, 1.0, 1e300];
    let (mut machine, took) = (Machine::new(DEEP, 0.0), [0, 1, 999, 1_000_000, u64::MAX / 1_000_000_000]);
    for cost in odd {
        let costs =
            Costs { decode_us: cost, row_us: cost, read_us: cost, prefill_us: cost, token_us: cost, depth_us: cost };
        let mut model = CostModel::new(costs);
        for _ in 0..2000 {
            let amount = |most: f64, draw: f64| (most * draw * draw * draw) as usize;
            let rows = [row(1 + amount(4000.0, machine.draw()), amount(1e7, machine.draw())), row(1, 0)];
            let took = Duration::from_millis(took[amount(4.99, machine.draw())]);
            for pass in [Pass::Prefill, Pass::Decode] {
                model.observe(pass, rows, took);
                let Costs { decode_us, row_us, read_us, prefill_us, token_us, depth_us } = model.costs();
                let all = [decode_us, row_us, read_us, prefill_us, token_us, depth_us];
                assert!(all.iter().all(|cost| cost.is_finite() && *cost >= 0.0), "{all:?} from {cost}");
                assert!(row_us > 0.0 && token_us > 0.0 && model.predict_us(pass, [row(1, 0)]) > 0.0);
                assert!((f64::MIN_POSITIVE..=1.0).contains(&model.row_part(100)));
                model.observe(pass, [], took);
                model.observe(pass, [row(0, 5)], took);
            }
        }
    }
}

#[test]
fn the_same_passes_give_the_same_costs() {
    let costs = || {
        let (mut machine, mut model) = (Machine::new(DEEP, 0.2), CostModel::new(THOUGHT));
        machine.prompts(&mut model, 100);
        machine.answers(&mut model, 100);
        model
    };
    assert_eq!(costs(), costs());
}

#[test]
fn a_row_is_a_part_of_a_pass() {
    let model = CostModel::new(COSTS);
    assert_eq!(model.row_part(100), 200.0 / 1200.0);
    assert!(model.row_part(0) < model.row_part(4000));
}

#[test]
fn whoever_has_the_deeper_context_pays_more_and_all_is_paid() {
    let model = CostModel::new(COSTS);
    let rows = [row(1, 0), row(1, 4000), row(3, 0)];
    let took = Duration::from_millis(9);
    let parts: Vec<u64> = model.parts_ns(Pass::Decode, rows.into_iter(), took).collect();
    assert!(parts[1] > 3 * parts[0] && parts[2] > parts[0]);
    assert!(parts.iter().sum::<u64>().abs_diff(9_000_000) < 10);
    // The machine was away for a second: they pay for twice what was predicted.
    let parts: Vec<u64> = model.parts_ns(Pass::Decode, rows.into_iter(), took + Duration::from_secs(1)).collect();
    let most_ns = 2e3 * model.predict_us(Pass::Decode, rows);
    assert!((parts.iter().sum::<u64>() as f64 - most_ns).abs() < 10.0 && most_ns > 9e6, "{parts:?}, {most_ns}");
}

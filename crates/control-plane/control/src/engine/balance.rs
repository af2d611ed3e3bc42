//! VMs that run move from full hosts to emptier ones: as a plan first, and then as it was planned.
//!
//! What is balanced is the part of a host's memory that the VMs running there have. A VM that is
//! off weighs nothing, and a host that takes no VMs has no part in it.

use std::cmp::Reverse;

use strongroom_api::Problem;
use strongroom_api::host::{Balance, BalanceHosts, HostLoad, PlannedMove};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{MoveToHost, PowerState};
use uuid::Uuid;

use super::Control;
use super::evacuate::not_moved;
use super::joining::host_object;
use super::live_moves::settings;
use super::moves::{IfOn, Volumes};
use super::placement::{Among, must_not_be_in_maintenance, placed_bytes};
use super::sweep::{Begun, Sweeps, not_twice};
use super::wishes::Caller;
use crate::bearer;
use crate::inventory::{Index, Row};
use crate::problems;
use crate::records::{Balancing, BalancingMove, Sweep, TaskRecord, VmRecord, Work};

/// The most moves of a plan: after that it is made anew.
const MOVES_MAX: usize = 32;
/// Hosts whose parts differ by no more than this are balanced, in thousandths of their memory.
const EVEN_WITHIN: u64 = 100;

/// A host that takes VMs, as the plan has it so far.
struct Load {
    id: Uuid,
    name: String,
    memory_bytes: u64,
    before_bytes: u64,
    running_bytes: u64,
    /// The memory that is placed there, on or off, with what the plan moves there.
    placed_bytes: u64,
}

impl Load {
    /// Its part with these bytes, in thousandths.
    fn part_with(&self, bytes: u64) -> u64 {
        let thousandths = u128::from(bytes) * 1000 / u128::from(self.memory_bytes.max(1));
        u64::try_from(thousandths).unwrap_or(u64::MAX)
    }

    fn part(&self) -> u64 {
        self.part_with(self.running_bytes)
    }
}

impl Control {
    /// Plans the moves that would balance the hosts.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn plan_balance(&self) -> Result<Balance, Problem> {
        let index = self.inventory.read();
        let (loads, moves) = self.plan(&index)?;
        let name_of = |id: Uuid| loads.iter().find(|load| load.id == id).map(|load| load.name.clone());
        let planned = moves.iter().filter_map(|planned| {
            let vm = index.vm(planned.vm)?;
            Some(PlannedMove {
                vm: vm.id,
                name: vm.name.to_string(),
                from: name_of(planned.from)?,
                to: name_of(planned.to)?,
                memory_bytes: vm.hardware.memory.bytes(),
            })
        });
        let planned = planned.collect();
        let hosts = loads.into_iter().map(|load| HostLoad {
            host: load.name,
            memory_bytes: load.memory_bytes,
            running_bytes: load.before_bytes,
            after_bytes: load.running_bytes,
        });
        let plan = (!moves.is_empty()).then(|| name_of_plan(&moves));
        Ok(Balance { hosts: hosts.collect(), moves: planned, plan })
    }

    /// Requests the moves of a plan.
    ///
    /// # Errors
    /// [`Problem`]; also if other moves are planned by now.
    pub fn balance_hosts(&self, caller: &Caller, wish: &BalanceHosts) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let running = |work: &Work| matches!(work, Work::Balance(_));
            not_twice(index, running, "hosts are being balanced".to_owned())?;
            let (_, moves) = self.plan(index)?;
            if moves.is_empty() || name_of_plan(&moves) != wish.plan {
                let message = "other moves are planned by now than in this plan".to_owned();
                return Err(
                    problems::conflict(message).next("`strongroom host balance` shows the present ones")
                );
            }
            let fullest = index
                .hosts
                .get(&moves[0].from.to_string())
                .ok_or_else(|| problems::conflict("a host of the plan is gone".to_owned()))?;
            let task = self.task(id, TaskKind::HostsBalance, host_object(fullest), caller);
            let work = Work::Balance(Balancing { moves, vms: Sweep::default() });
            Ok((TaskRecord { work, ..task }, self.draft()))
        })
    }

    /// The hosts, the fullest first, as they are after the moves; and the moves.
    fn plan(&self, index: &Index) -> Result<(Vec<Load>, Vec<BalancingMove>), Problem> {
        let mut loads: Vec<Load> = index
            .hosts
            .iter()
            .filter(|host| !host.is_leaving() && must_not_be_in_maintenance(host).is_ok())
            .filter_map(|host| {
                let seat = self.seat(host.id)?;
                let memory_bytes = {
                    let seen = seat.seen();
                    seen.state.as_ref().filter(|_| seen.down.is_none())?.memory_bytes
                };
                let running = self.running_on(index, host.id).map(|vm| vm.hardware.memory.bytes());
                let running_bytes = running.fold(0, u64::saturating_add);
                Some(Load {
                    id: host.id,
                    name: host.name.to_string(),
                    memory_bytes,
                    before_bytes: running_bytes,
                    running_bytes,
                    placed_bytes: placed_bytes(index, host.id),
                })
            })
            .collect();
        loads.sort_by(|one, other| other.part().cmp(&one.part()).then_with(|| one.name.cmp(&other.name)));
        let if_on = IfOn { settings: settings(&MoveToHost::default())?, shut_down_s: None };
        let mut planned = Vec::new();
        while planned.len() < MOVES_MAX {
            let Some((from, to, vm)) = self.next_move(index, &loads, &planned, if_on) else { break };
            let bytes = vm.hardware.memory.bytes();
            loads[from].running_bytes -= bytes.min(loads[from].running_bytes);
            loads[to].running_bytes = loads[to].running_bytes.saturating_add(bytes);
            loads[to].placed_bytes = loads[to].placed_bytes.saturating_add(bytes);
            planned.push(BalancingMove { vm: vm.id, from: loads[from].id, to: loads[to].id });
        }
        Ok((loads, planned))
    }

    /// The move that evens the fullest host and an emptier one best: from, to, and which VM.
    fn next_move<'index>(
        &'index self,
        index: &'index Index,
        loads: &[Load],
        planned: &[BalancingMove],
        if_on: IfOn,
    ) -> Option<(usize, usize, &'index Row<VmRecord>)> {
        let mut by_part: Vec<usize> = (0..loads.len()).collect();
        by_part.sort_by_key(|place| Reverse(loads[*place].part()));
        let (fullest, others) = by_part.split_first()?;
        let from = &loads[*fullest];
        for to in others.iter().rev() {
            let emptier = &loads[*to];
            if from.part().saturating_sub(emptier.part()) <= EVEN_WITHIN {
                return None;
            }
            // What would be left of the difference, of the VMs that make it smaller.
            let mut candidates: Vec<(u64, &Row<VmRecord>)> = self
                .running_on(index, from.id)
                .filter(|vm| vm.task.is_none() && planned.iter().all(|planned| planned.vm != vm.id))
                .filter_map(|vm| {
                    let bytes = vm.hardware.memory.bytes();
                    let less = from.part_with(from.running_bytes.saturating_sub(bytes));
                    let more = emptier.part_with(emptier.running_bytes.saturating_add(bytes));
                    let has_room = emptier.placed_bytes.saturating_add(bytes) <= emptier.memory_bytes;
                    (has_room && more < from.part()).then(|| (less.abs_diff(more), vm))
                })
                .collect();
            candidates.sort_by(|one, other| {
                one.0.cmp(&other.0).then_with(|| one.1.name.as_str().cmp(other.1.name.as_str()))
            });
            let named = emptier.id.to_string();
            let may_move = |vm: &&Row<VmRecord>| {
                self.departure(index, vm, &Among::Named(&named), if_on, Volumes::Stay).is_ok()
            };
            if let Some(vm) = candidates.into_iter().map(|(_, vm)| vm).find(may_move) {
                return Some((*fullest, *to, vm));
            }
        }
        None
    }

    fn running_on<'index>(
        &'index self,
        index: &'index Index,
        host: Uuid,
    ) -> impl Iterator<Item = &'index Row<VmRecord>> {
        index.vms_on(host).filter(|vm| self.power_of(index, vm) == PowerState::Running)
    }
}

/// What names the moves of a plan, in their order.
fn name_of_plan(moves: &[BalancingMove]) -> String {
    let moves = moves.iter().map(|BalancingMove { vm, from, to }| format!("{vm} {from} {to}\n"));
    bearer::sha256(&moves.collect::<String>())
}

impl Sweeps for Balancing {
    const EVENT: &'static str = "hosts.balance";

    fn vms(&self) -> &Sweep {
        &self.vms
    }

    fn vms_mut(&mut self) -> &mut Sweep {
        &mut self.vms
    }

    fn into_work(self) -> Work {
        Work::Balance(self)
    }

    fn todo<'index>(&self, index: &'index Index) -> Vec<&'index Row<VmRecord>> {
        let stays = |planned: &BalancingMove| index.vm(planned.vm).filter(|vm| vm.host == planned.from);
        self.moves.iter().filter_map(stays).collect()
    }

    fn begin(&self, control: &Control, task: &Row<TaskRecord>, vm: &Row<VmRecord>) -> Result<Begun, Problem> {
        let Some(planned) = self.moves.iter().find(|planned| planned.vm == vm.id) else {
            return Err(problems::conflict(format!("{} is not in the plan", problems::called(vm))));
        };
        let if_on = IfOn { settings: settings(&MoveToHost::default())?, shut_down_s: None };
        control.begin_move(task, vm, &Among::Named(&planned.to.to_string()), if_on, Volumes::Stay)
    }

    fn failure(&self, _: &Index, reasons: &str) -> Option<Problem> {
        let not_moved = not_moved(&self.vms, reasons)?;
        Some(not_moved.next("see to the reasons, and look at the next plan: `strongroom host balance`"))
    }
}

// Package metering makes of events what is counted: which units of which meter, by
// whom, in which period, and what was refused. It knows the events of usage.v1 by
// their meaning and nothing of where they come from or go to.
//
// What counts:
//
//   - A call that passed, with every enforced quota and wallet that it was charged to:
//     once per meter, however many counters the meter has, the largest charge of them.
//   - On the meter api-calls a call that passed counts its cost also where no counter
//     of that meter was charged: plans price calls whether or not they are limited.
//   - What passed while the counters could not be read, marked as degraded.
//   - Refunds and settlements, in the period of the decision that they correct.
//
// Shadow rules count nothing; refusals count as cuts. What a prepaid wallet paid is
// counted and not priced.
package metering

"""The catalogue of the doctor's checks; ``docs/doctor.md`` shows the same, and a test compares the two."""

from __future__ import annotations

from typing import Final

from postroad.runtime.doctor.findings import Check

SETTINGS: Final = Check(
    "settings", "variables that begin with POSTROAD_ and are no setting",
    "it has no effect", "remove it if it was meant for Postroad",
)  # fmt: skip

# --- the database ---------------------------------------------------------------------------------------------------

DATABASE: Final = Check(
    "database", "whether POSTROAD_DATABASE_URL can be reached",
    "nothing is staged, dispatched or handled", "see the text",
)  # fmt: skip
VERSION: Final = Check(
    "database.version", "PostgreSQL 14 to 18",
    "statements of this release may fail there", "use a version that is tested: PostgreSQL 14 to 18",
)  # fmt: skip
TLS: Final = Check(
    "database.tls", "whether the connection is encrypted, where it leaves the machine",
    "passwords and payloads can be read on the way", "add sslmode=verify-full to the URL, and require hostssl",
)  # fmt: skip
ROLE: Final = Check(
    "database.role", "the runtime role is no superuser, owns nothing of the schema and has no powers beyond rows",
    "a fault or a stolen password could touch every table",
    "create a role, `postroad migrate --runtime-role ROLE` as the owner, and run as it",
)  # fmt: skip
RIGHTS: Final = Check(
    "database.rights", "the runtime role may do what its processes need",
    "events stay unsent and deliveries go back", "run `postroad migrate --runtime-role ROLE` as the owner",
)  # fmt: skip
AUTHOR: Final = Check(
    "database.author", "the author role (POSTROAD_AUTHOR_ROLE) has INSERT and USAGE, exactly",
    "lacking: every publish fails; too much: an author can read payloads of others, or delete what still waits",
    "run `postroad migrate --author-role ROLE` as the owner, and revoke what goes beyond",
)  # fmt: skip
SCHEMA: Final = Check(
    "schema", "schema and release serve each other",
    "processes refuse to start", "run `postroad migrate` as the owner",
)  # fmt: skip
BUILD: Final = Check(
    "schema.build", "tables, columns and functions are what the migrations make",
    "statements fail, or do something else than this release means",
    "undo the change, or restore the schema from a backup; what is not Postroad's belongs into another schema",
)  # fmt: skip
INDEXES: Final = Check(
    "schema.indexes", "the indexes are those that the migrations make, and valid",
    "claims and dispatch read whole tables, or a key is there twice; each index more slows every write",
    "make it again as the migration has it (`postroad migrate --sql`), or REINDEX; drop what is not needed",
)  # fmt: skip
DIRECT: Final = Check(
    "direct", "POSTROAD_DIRECT_URL reaches the same database, with no transaction pooler in between",
    "leases cannot be renewed, so nothing is dispatched or retried",
    "give the database's own host and port in POSTROAD_DIRECT_URL",
)  # fmt: skip
CONNECTIONS: Final = Check(
    "connections", "the connections of one more process against what server, database and role allow",
    "a process of the next deploy does not start, or its handlers wait for a connection",
    "lower POSTROAD_POOL_SIZE or the consumers' concurrency, split roles, raise the limit, or put a pooler in between",
)  # fmt: skip
PARTITIONS: Final = Check(
    "partitions.ahead", "seven days of partitions lie ahead",
    "authors are not held up, but their rows land in the DEFAULT partition, which is never dropped",
    "run a process with the role maintain, or `postroad maintain` daily",
)  # fmt: skip
LEFTOVERS: Final = Check(
    "partitions.default", "no rows in the DEFAULT partitions",
    "what is there stays past its retention, and its days get no partition of their own",
    "see that maintenance runs; move the rows of past days by hand when nobody writes",
)  # fmt: skip
HORIZON: Final = Check(
    "vacuum.horizon", "the oldest transaction, replication slot or prepared transaction that holds vacuum back",
    "dead rows pile up in outbox, work and lease: claims and dispatch get slower by the hour",
    "end it: see its application; `pg_terminate_backend(pid)`, `ROLLBACK PREPARED`, `pg_drop_replication_slot`",
)  # fmt: skip
DEAD_ROWS: Final = Check(
    "vacuum.dead-rows", "dead rows of the tables that change all the time",
    "claims, dispatch and renewals walk over them, slower by the hour",
    "see `vacuum.horizon` for what holds vacuum back; else VACUUM the table, and see that autovacuum is on",
)  # fmt: skip
RENEWALS: Final = Check(
    "leases.renewal", "leases that are held and not renewed, and what still stands under them",
    "what they stand for waits: events of a shard, rows that a dead worker ran",
    "see that processes run and reach POSTROAD_DIRECT_URL; `postroad lease list --all`; fence what hangs",
)  # fmt: skip
WINDOWS: Final = Check(
    "retention.windows", "inboxes are compared with their logs only as far back as marks are kept",
    "nothing; but what was handled before is taken for missing, and a repair would have it handled again",
    "lower `within` of `handled`, or raise POSTROAD_INBOX_DAYS",
)  # fmt: skip
FLOOR: Final = Check(
    "dispatch.floor", "the oldest open transaction that has written, in any database of the server",
    "nothing; but the dispatcher reads again all that was staged since, for a late commit may lie below",
    "keep writing transactions short; find the application and end what hangs",
)  # fmt: skip
COMMIT: Final = Check(
    "durability.commit", "fsync, full_page_writes and synchronous_commit",
    "after a crash of the server an event may be sent whose transaction is gone (P1), or an effect done twice (P3)",
    "set them on, for the server and for the roles",
)  # fmt: skip
STANDBY: Final = Check(
    "durability.standby", "standbys that a fail-over could promote are synchronous",
    "after a fail-over the last commits are gone, inbox marks with their effects: events sent meanwhile outlive their"
    " transaction, and P3 holds only for what was replicated",
    "set synchronous_standby_names, or accept the loss and reconcile after a fail-over",
)  # fmt: skip
INBOX: Final = Check(
    "retention.inbox", "inbox marks outlive every consumer's retry budget",
    "a late copy finds no mark: it is quarantined, or its effect comes twice",
    "raise POSTROAD_INBOX_DAYS, or lower max_age of the consumer's retry",
)  # fmt: skip
WAITING: Final = Check(
    "outbox.waiting", "how many events wait, and how long the oldest has",
    "nothing, but consumers see them late", "see that a dispatcher runs and that the broker takes publishes",
)  # fmt: skip
REFUSED: Final = Check(
    "outbox.refused", "waiting events that were refused before, with reason and route",
    "nothing: they are tried again; later events of their keys wait behind them",
    "do what the reason says: apply the topology of the consumer, give the broker user its rights",
)  # fmt: skip
WORK: Final = Check(
    "work.waiting", "queues with ready jobs or retries of which none runs: for a minute where the App does not declare"
    " the queue, else for five",
    "nothing, but nobody runs them",
    "add the job to App(jobs=...), or run the App that has it with the role work; where it is paused, `postroad queue"
    " resume`",
)  # fmt: skip
QUARANTINE: Final = Check(
    "quarantine.open", "how much lies in quarantine, and since when",
    "nothing, but nobody handles it", "look at `postroad quarantine list`, repair, then release",
)  # fmt: skip

# --- effects and schedules -------------------------------------------------------------------------------------------

PERSON: Final = Check(
    "effects.person", "effects whose outcome only a person can find out, and since when",
    "whether the provider has acted nobody knows, and what waits for the outcome stands still",
    "`postroad effects list --state manual`, ask the provider, then `postroad effects resolve ID --as ...`",
)  # fmt: skip
UNKNOWN: Final = Check(
    "effects.unknown", "effects without an outcome for longer than their look-ups take (time limit, settling, the"
    " longest pause between looks); for 15 minutes where the App does not declare them",
    "nothing is repeated, but what waits for the outcome stands still",
    "`postroad effects show ID` says what the look-ups heard; run the App that declares them with the role work; where"
    " the provider cannot tell, `postroad effects resolve ID --as ...`",
)  # fmt: skip
KEY_WINDOW: Final = Check(
    "effects.key-window", "effects without an outcome whose keys the provider forgets within the hour",
    "after that no look-up is believed and nothing is repeated: a person has to ask the provider",
    "mend what keeps the look-ups without an answer, then `postroad effects look-up ID`",
)  # fmt: skip
PAUSED: Final = Check(
    "schedules.paused", "schedules that are paused: after a failure (warning), or by a person (note)",
    "nothing of them starts, and what comes due meanwhile is not made up for",
    "`postroad schedule history NAME`, mend the job, `postroad schedule resume NAME`; then `postroad schedule backfill`"
    " where the missed runs are wanted",
)  # fmt: skip
PLANNER: Final = Check(
    "schedules.planner",
    "every App with schedules has a process that plans them, and those declared are in the database",
    "nothing starts; what comes due meanwhile goes by the missed-run policy, which may skip it",
    "run the App with the role schedule",
)  # fmt: skip
LATE: Final = Check(
    "schedules.late", "schedules that are overdue for a minute although a process plans them",
    "runs start late; past the catch-up window or the start deadline they are recorded as missed",
    "read that process's log and `postroad_schedule_*`; look for sessions that hold rows of `schedule`",
)  # fmt: skip
RETIRED: Final = Check(
    "schedules.retired", "schedules that no release declares any more, and of which something still waits to run",
    "where the job is gone, too, it never runs",
    "`postroad work list`: run a release that has the job, or `postroad work cancel ID`",
)  # fmt: skip

# --- the broker -----------------------------------------------------------------------------------------------------

BROKER: Final = Check(
    "broker", "whether POSTROAD_BROKER_URL can be reached",
    "nothing: events wait in the outbox, deliveries in their queues", "see the text",
)  # fmt: skip
BROKER_VERSION: Final = Check(
    "broker.version", "RabbitMQ 3.10 to 4.x, and releases with known loss",
    "dead-lettering or delivery counts may lose messages there", "use the newest patch of RabbitMQ 3.10 to 4.x",
)  # fmt: skip
BROKER_USER: Final = Check(
    "broker.user", "a user of its own rather than guest, and TLS where the connection leaves the machine",
    "anybody who knows the default password reads, writes and deletes everything",
    "make a user per service, delete guest, use amqps://",
)  # fmt: skip
BROKER_RIGHTS: Final = Check(
    "broker.rights", "the user may read its queues and write to its exchanges, and not to those of others",
    "lacking: nothing is sent or delivered; too much: anybody can publish events that another service owns",
    "set the user's configure, write and read patterns to its own queues and exchanges",
)  # fmt: skip
INSTALLATION: Final = Check(
    "installation", "this database is the one that its broker knows, and no copy of it",
    "nothing: its processes neither send nor take anything; if they did, consumers would get what the original sends",
    "find out what became of the original, then run `postroad adopt`",
)  # fmt: skip
TOPOLOGY: Final = Check(
    "topology", "every declared exchange and queue exists",
    "the process does not start, events stay in the outbox", "run `postroad topology apply MODULE:APP`",
)  # fmt: skip
BINDINGS: Final = Check(
    "topology.bindings", "every declared binding stands",
    "events of that type never reach the queue while others still do, and nothing shows it",
    "run `postroad topology apply MODULE:APP`, then replay what was missed",
)  # fmt: skip
FOREIGN: Final = Check(
    "topology.foreign", "nothing else is bound to the App's queues and exchanges",
    "foreign deliveries end in quarantine, and may be published around the owner",
    "unbind it, or subscribe to the type",
)  # fmt: skip
EXCHANGES: Final = Check(
    "topology.exchanges", "exchanges are durable, of their type, and without an alternate exchange",
    "an alternate exchange makes every publish count as routed: an event without a queue is gone and recorded as sent",
    "remove the policy or argument; declare the exchange again",
)  # fmt: skip
ORPHANS: Final = Check(
    "topology.orphans", "queues that get the App's events, or once were a consumer's, and that nobody consumes",
    "nothing, until they fill the broker's disk and block every publisher", "consume them, or unbind and delete them",
)  # fmt: skip
ARGUMENTS: Final = Check(
    "queue.arguments", "the arguments that decide loss: type, dead-lettering, overflow, limits, single consumer",
    "messages are dropped without an error, or on one disk alone",
    "arguments cannot be changed: empty and delete the queue, then run `postroad topology apply MODULE:APP`",
)  # fmt: skip
LIMIT: Final = Check(
    "queue.delivery-limit", "the delivery limit in effect, by argument and policy: never none, never small",
    "what is given back that often (pauses, deploys) is dead-lettered, innocent neighbours too; without a limit it goes"
    " behind the queue and comes for ever",
    "remove delivery-limit from the policy; the queue's argument is 10000",
)  # fmt: skip
TIMEOUT: Final = Check(
    "queue.consumer-timeout", "the broker's consumer time-out against max_runtime, and what waits in the prefetch",
    "the broker closes the channel and gives everything in hand out again, counted towards the delivery limit",
    "raise consumer-timeout, or lower max_runtime or prefetch",
)  # fmt: skip
POLICY: Final = Check(
    "queue.policy", "policies that lose messages: message-ttl, expires; and lengths",
    "with message-ttl events go by age alone, with expires the whole queue does while its consumer is down; at a length"
    " limit publishes are refused and wait in the outbox",
    "take the queue out of the policy",
)  # fmt: skip
DEAD: Final = Check(
    "queue.dead-letters", "messages that the broker itself took out of a queue",
    "nothing yet, but nobody handles them", "run a process with the role consume: it puts them into quarantine",
)  # fmt: skip

DELIVERIES: Final = Check(
    "deliveries.waiting", "over PostgreSQL, how many deliveries wait for each consumer, and how long the oldest has",
    "nothing, but they are not handled",
    "run a process of the consumer's App with the role consume; is it gone for good, `postroad topology retire NAME`",
)  # fmt: skip
FORMER: Final = Check(
    "transport.former", "what still waits in a transport that carries events no more",
    "nothing: deliveries in the database are run by processes with the role work; those in a broker's queues wait for"
    " processes that take from it",
    "for the database, run a process with the role work; for a broker, run the consumers against it until it is empty",
)  # fmt: skip

CHECKS: Final[tuple[Check, ...]] = (
    SETTINGS, DATABASE, VERSION, TLS, ROLE, RIGHTS, AUTHOR, SCHEMA, DIRECT, CONNECTIONS, PARTITIONS, LEFTOVERS, HORIZON,
    FLOOR, COMMIT, STANDBY, INBOX, WAITING, REFUSED, WORK, QUARANTINE,
    BUILD, INDEXES, DEAD_ROWS, RENEWALS, WINDOWS,
    PERSON, UNKNOWN, KEY_WINDOW, PAUSED, PLANNER, LATE, RETIRED,
    BROKER, BROKER_VERSION, BROKER_USER, BROKER_RIGHTS, INSTALLATION, TOPOLOGY, BINDINGS, FOREIGN, EXCHANGES, ORPHANS,
    ARGUMENTS, LIMIT, TIMEOUT, POLICY, DEAD, DELIVERIES, FORMER,
)  # fmt: skip
"""Every check, in the order of the report."""

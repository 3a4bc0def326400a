// The everyday types of zod: their schemas as zod writes them, and whether it takes what was written by them.

import { z } from "zod";
import { run } from "./scenarios.mjs";

const Category = z.object({
  name: z.string().max(5),
  get inner() {
    return z.array(Category).max(2);
  },
});

const TYPES = {
  string: z.string(),
  string_bounds: z.string().min(2).max(5),
  string_length: z.string().length(3),
  nonempty: z.string().nonempty(),
  regex: z.string().regex(/^[A-Z]{3}-\d+$/),
  regex_and_length: z.string().regex(/^[a-z]+$/).max(4),
  starts_with: z.string().startsWith("a-"),
  ends_with: z.string().endsWith("-z"),
  includes: z.string().includes("mid"),
  lowercase: z.string().lowercase(),
  uppercase: z.string().uppercase(),
  trimmed: z.string().trim(),
  email: z.email(),
  url: z.url(),
  hostname: z.hostname(),
  uuid: z.uuid(),
  uuid_v4: z.uuidv4(),
  uuid_v7: z.uuidv7(),
  guid: z.guid(),
  cuid: z.cuid(),
  cuid2: z.cuid2(),
  ulid: z.ulid(),
  nanoid: z.nanoid(),
  ksuid: z.ksuid(),
  xid: z.xid(),
  e164: z.e164(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  cidrv4: z.cidrv4(),
  base64: z.base64(),
  base64url: z.base64url(),
  hex: z.hex(),
  iso_date: z.iso.date(),
  iso_time: z.iso.time(),
  iso_datetime: z.iso.datetime(),
  iso_datetime_offset: z.iso.datetime({ offset: true }),
  iso_datetime_local: z.iso.datetime({ local: true }),
  iso_duration: z.iso.duration(),
  template_literal: z.templateLiteral(["v", z.int().min(0).max(9)]),
  number: z.number(),
  number_bounds: z.number().min(0.5).max(2.5),
  positive: z.number().positive(),
  nonnegative: z.number().nonnegative(),
  negative: z.number().negative(),
  int: z.int(),
  int32: z.int32(),
  uint32: z.uint32(),
  int_bounds: z.int().gte(1).lte(12),
  multiple: z.int().multipleOf(5).min(0).max(100),
  step: z.number().multipleOf(0.25).min(0).max(1),
  boolean: z.boolean(),
  null: z.null(),
  literal: z.literal("only"),
  literals: z.literal(["a", 1, null]),
  enum: z.enum(["red", "blue"]),
  native_enum: z.enum({ Up: 0, Down: 1 }),
  nullable: z.string().max(4).nullable(),
  nullish: z.object({ a: z.int().nullish() }),
  optional: z.object({ a: z.int().optional(), b: z.boolean() }),
  default: z.object({ a: z.int().default(3) }),
  prefault: z.object({ a: z.int().prefault(3) }),
  catch: z.object({ a: z.int().catch(3) }),
  array: z.array(z.int()),
  array_bounds: z.array(z.boolean()).min(1).max(3),
  tuple: z.tuple([z.string().max(3), z.boolean()]),
  tuple_rest: z.tuple([z.boolean()], z.int()),
  object: z.object({ a: z.string().max(3), b: z.object({ c: z.int() }) }),
  strict_object: z.strictObject({ a: z.int() }),
  loose_object: z.looseObject({ a: z.int() }),
  catchall: z.object({ a: z.int() }).catchall(z.boolean()),
  partial: z.object({ a: z.int(), b: z.int() }).partial(),
  record: z.record(z.string(), z.int()),
  record_bounds: z.record(z.string().min(2).max(4), z.int()),
  record_enum: z.partialRecord(z.enum(["a", "b"]), z.int()),
  record_enum_whole: z.record(z.enum(["a", "b"]), z.int()),
  record_regex: z.record(z.string().regex(/^k\d$/), z.boolean()),
  record_uuid: z.record(z.uuid(), z.boolean()),
  union: z.union([z.string().max(3), z.int(), z.null()]),
  discriminated: z.discriminatedUnion("type", [
    z.object({ type: z.literal("circle"), radius: z.number() }),
    z.object({ type: z.literal("square"), side: z.number() }),
  ]),
  intersection: z.intersection(z.object({ a: z.int() }), z.object({ b: z.boolean() })),
  recursive: Category,
  readonly: z.array(z.int()).readonly(),
  described: z.string().max(3).describe("a text").meta({ title: "Text", examples: ["a"] }),
  branded: z.string().max(3).brand("Id"),
  any: z.any(),
  json: z.json(),
};
const TARGETS = ["draft-2020-12", "draft-7"];

run({
  schemas() {
    const written = Object.entries(TYPES).flatMap(([name, type]) =>
      TARGETS.map((target) => [`${name} ${target}`, z.toJSONSchema(type, { target })]),
    );
    return Object.fromEntries(written);
  },

  async refused() {
    let sent = "";
    for await (const piece of process.stdin) sent += piece;
    return Object.entries(JSON.parse(sent)).flatMap(([name, texts]) =>
      texts.filter((text) => !TYPES[name.split(" ")[0]].safeParse(JSON.parse(text)).success).map((text) => [name, text]),
    );
  },
});

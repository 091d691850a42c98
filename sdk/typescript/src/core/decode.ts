/**
 * From JSON to the generated models.
 *
 * Unknown fields are left out, so that a newer daemon is understood. A missing or wrong one is a
 * `NotUnderstoodError` that names it.
 */

import { NotUnderstoodError } from "./failure.js";

/** Takes a value for what it must be; `where` is its place in the answer, for the error. */
export type Reader<T> = (value: unknown, where: string) => T;

/** A field of an object: what it is called on the wire, and what it gives. */
export interface Field<T> {
  readonly wire: string;
  readonly read: Reader<T>;
}

function wrong(where: string, what: string, value: unknown): NotUnderstoodError {
  const shown = JSON.stringify(value)?.slice(0, 80) ?? "nothing";
  return new NotUnderstoodError(`\`${where}\` is not ${what} but ${shown}`);
}

/** Text. */
export const text: Reader<string> = (value, where) => {
  if (typeof value !== "string") throw wrong(where, "text", value);
  return value;
};

/** A number. */
export const number: Reader<number> = (value, where) => {
  if (typeof value !== "number") throw wrong(where, "a number", value);
  return value;
};

/** True or false. */
export const truth: Reader<boolean> = (value, where) => {
  if (typeof value !== "boolean") throw wrong(where, "true or false", value);
  return value;
};

/** A list. */
export function list<T>(item: Reader<T>): Reader<readonly T[]> {
  return (value, where) => {
    if (!Array.isArray(value)) throw wrong(where, "a list", value);
    return value.map((each) => item(each, where));
  };
}

/** An object whose keys are free. */
export function map<T>(item: Reader<T>): Reader<Readonly<Record<string, T>>> {
  return (value, where) => {
    const entries = Object.entries(members(value, where));
    return Object.fromEntries(entries.map(([key, each]) => [key, item(each, where)]));
  };
}

/** A field that must be there. */
export function needed<T>(wire: string, reader: Reader<T>): Field<T> {
  const read: Reader<T> = (value, where) => {
    if (value === undefined) throw new NotUnderstoodError(`the answer lacks \`${where}\``);
    return reader(value, where);
  };
  return { wire, read };
}

/** A field that may be absent or null. */
export function perhaps<T>(wire: string, reader: Reader<T>): Field<T | undefined> {
  return { wire, read: (value, where) => (value == null ? undefined : reader(value, where)) };
}

/** A field for which there is something else when it is absent or null. */
export function otherwise<T>(wire: string, reader: Reader<T>, other: () => T): Field<T> {
  return { wire, read: (value, where) => (value == null ? other() : reader(value, where)) };
}

/** An object with these fields. */
export function object<T extends object>(
  name: string,
  fields: { readonly [K in keyof T]-?: Field<T[K]> },
): Reader<T> {
  const known = Object.entries<Field<unknown>>(fields);
  return (value) => {
    const given = members(value, name);
    const found: Record<string, unknown> = {};
    for (const [key, field] of known) {
      const content = field.read(given[field.wire], `${name}.${field.wire}`);
      if (content !== undefined) found[key] = content;
    }
    return found as T;
  };
}

/** The members of an object that came. */
export function members(value: unknown, where: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw wrong(where, "an object", value);
  }
  return value as Record<string, unknown>;
}

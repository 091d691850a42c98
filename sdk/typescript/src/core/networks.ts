/** The routes of private networks. */

import * as models from "../generated/models.js";
import { many, nothing, one, type Call } from "./call.js";
import { path } from "./request.js";

export function networks(): Call<readonly models.Network[]> {
  return { method: "GET", path: "/v1/networks", parse: many(models.readNetwork) };
}

export function createNetwork(name: string): Call<models.Network> {
  return { method: "POST", path: "/v1/networks", parse: one(models.readNetwork), body: { name } };
}

export function privateNetwork(name: string): Call<models.Network> {
  return { method: "GET", path: path("v1", "networks", name), parse: one(models.readNetwork) };
}

export function removeNetwork(name: string): Call<void> {
  return { method: "DELETE", path: path("v1", "networks", name), parse: nothing };
}

export function joinNetwork(id: string, name: string): Call<models.Sandbox> {
  return { method: "PUT", path: member(id, name), parse: one(models.readSandbox) };
}

export function leaveNetwork(id: string, name: string): Call<models.Sandbox> {
  return { method: "DELETE", path: member(id, name), parse: one(models.readSandbox) };
}

function member(id: string, name: string): string {
  return path("v1", "networks", name, "members", id);
}

// The one place that names the vendored library: `html` makes virtual DOM from a template, without a build step.
import { h, render, createContext, Component } from "../vendor/preact.module.js";
import htm from "../vendor/htm.module.js";

export const html = htm.bind(h);
export { h, render, createContext, Component };
export {
  useCallback,
  useContext,
  useEffect,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/hooks.module.js";
